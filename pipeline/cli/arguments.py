"""Parse a stage's arguments and generate its help from its `Config`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn, get_args

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

from pipeline.errors import UserError


@dataclass(frozen=True, slots=True)
class Arguments:
    """What the command line of a stage says."""

    config: Path
    inputs: dict[str, Path]
    out: Path
    report: Path
    overrides: tuple[str, ...]
    limit: int | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; see `{self.prog} --help`")


def parse_stage_arguments(stage: str, argv: Sequence[str]) -> Arguments:
    """Parse the arguments after the stage's name. Raises UserError for wrong or missing ones."""
    parser = _Parser(prog=f"warmstart {stage}", add_help=False, allow_abbrev=False)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--in", dest="inputs", action="append", default=[])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--report", type=Path, required=True)
    parser.add_argument("--set", dest="overrides", action="append", default=[])
    parser.add_argument("--limit", type=int, default=None)
    parsed = parser.parse_args(argv)
    if parsed.limit is not None and parsed.limit < 1:
        raise UserError(f"--limit {parsed.limit}: give the number of input records to work on, 1 or more")
    inputs = {}
    for pair in parsed.inputs:
        name, separator, path = pair.partition("=")
        if not separator or not path:
            raise UserError(f"--in {pair}: write NAME=PATH, for example --in tasks=data/demo/tasks")
        if not Path(path).exists():
            raise UserError(f"--in {name}={path}: does not exist; run the stage that makes it, or mend the path")
        inputs[name] = Path(path)
    return Arguments(parsed.config, inputs, parsed.out, parsed.report, tuple(parsed.overrides), parsed.limit)


def command_parser(command: str, module: ModuleType) -> argparse.ArgumentParser:
    """The parser of a command: its docstring is the help, `add_arguments` says the rest."""
    parser = _Parser(
        prog=f"warmstart {command}",
        description=(module.__doc__ or "").strip(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    module.add_arguments(parser)
    return parser


def stage_help(stage: str, module: ModuleType) -> str:
    """The text of `warmstart STAGE --help`: what it does, inputs, arguments, every config key."""
    lines = [
        f"usage: warmstart {stage} --config FILE "
        + " ".join(f"--in {name}=PATH" for name in module.INPUTS)
        + " --out DIR --report FILE",
        "",
    ]
    lines += [(module.__doc__ or "").strip(), "", "inputs:"]
    optional = getattr(module, "OPTIONAL_INPUTS", {})
    lines += [f"  {name:<12} {text}" for name, text in module.INPUTS.items()] or ["  none"]
    lines += [f"  {name:<12} {text} (may be left out)" for name, text in optional.items()]
    lines += [
        "",
        "arguments:",
        "  --config FILE      YAML with the keys below",
        "  --in NAME=PATH     an input, once for each",
        "  --out DIR          the output folder; replaced only when the stage has finished",
        "  --report FILE      flat JSON numbers of the run (a DVC metrics file)",
        "  --set KEY=VALUE    override a config key, as in --set a.b=0.5; may be repeated",
        "  --limit N          work on the first N input records only",
        "",
        "config keys:",
    ]
    return "\n".join(lines + _keys(module.Config, "  "))


def _keys(model: type[BaseModel], indent: str) -> list[str]:
    lines = []
    for name, field in model.model_fields.items():
        if field.is_required():
            default = "required"
        else:
            value = (
                field.default
                if field.default is not PydanticUndefined
                else field.get_default(call_default_factory=True)
            )
            default = "default below" if isinstance(value, BaseModel) else f"default {value!r}"
        bounds = ", ".join(str(rule) for rule in field.metadata)
        lines.append(f"{indent}{name}  ({_type_name(field.annotation)}; {default}{'; ' + bounds if bounds else ''})")
        lines += [f"{indent}    {line}" for line in (field.description or "").split("\n") if line]
        for nested in _models(field.annotation):
            if len(_models(field.annotation)) > 1:
                lines.append(f"{indent}    {nested.__name__}: {(nested.__doc__ or '').strip().splitlines()[0]}")
            lines += _keys(nested, indent + "    ")
    return lines


def _models(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in _models(argument)]


def _type_name(annotation: Any) -> str:  # noqa: ANN401 - a type expression
    if isinstance(annotation, type) and not get_args(annotation):
        return annotation.__name__
    return (
        str(annotation)
        .replace("typing.", "")
        .replace("pathlib.", "")
        .replace("stages.", "")
        .replace("NoneType", "None")
    )

"""Stage configs: pydantic models that refuse unknown keys, read from YAML, overridden by `--set key=value`."""

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from pipeline.errors import UserError


class StrictModel(BaseModel):
    """Base of every config block: frozen, unknown keys refused, the docstring under a field is its help."""

    # A revision or an answer written as a bare number in YAML is still text.
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, coerce_numbers_to_str=True)


class StageConfig(StrictModel):
    """Base of every stage's `Config`: only values that change results."""

    seed: int = 0
    """Seed of everything random in the stage; each record derives its own from it and its id."""
    max_rejected: float = Field(1.0, ge=0, le=1)
    """Fail the stage when a larger fraction (0..1) of its input is rejected."""
    limit: int | None = Field(None, ge=1)
    """Work on the first so many input records only; `--limit N` sets it."""


ModelT = TypeVar("ModelT", bound=BaseModel)


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys in silence; here that is an error."""


def _mapping_without_repeats(loader: _UniqueKeyLoader, node: yaml.MappingNode) -> dict[Hashable, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, Hashable):
            raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
        if key != "<<" and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"the key {key!r} stands twice", key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return yaml.SafeLoader.construct_mapping(loader, node, deep=True)


_UniqueKeyLoader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping_without_repeats)


def load_yaml(path: Path) -> dict[str, Any]:
    """Read a YAML mapping. Raises UserError for a missing file, bad encoding, bad YAML or another shape."""
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UserError(f"{path}: no such config file; check the path given to --config") from None
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text ({error}); save it as UTF-8") from None
    try:
        # A subclass of SafeLoader: builds plain values only.
        value = yaml.load(text, Loader=_UniqueKeyLoader)
    except yaml.YAMLError as error:
        raise UserError(f"{path}: not valid YAML; mend the marked line\n{error}") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UserError(f"{path}: found a {type(value).__name__}, but a config is a mapping of keys to values")
    return value


def apply_overrides(values: dict[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Set `a.b=value` pairs (values are YAML) over nested mappings; lists take an index, as in `sources.0.size=5`."""
    for override in overrides:
        key, separator, text = override.partition("=")
        if not separator or not key:
            raise UserError(f"--set {override}: write key=value, for example --set sampling.temperature=0.7")
        try:
            value = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise UserError(f"--set {override}: the value is not valid YAML\n{error}") from None
        target: Any = values
        *parents, last = key.split(".")
        for name in parents:
            target = target[_index(target, name, override)] if isinstance(target, list) else target.setdefault(name, {})
            if not isinstance(target, dict | list):
                raise UserError(f"--set {override}: {name} holds {target!r}, which has no keys below it")
        target[_index(target, last, override) if isinstance(target, list) else last] = value
    return values


def _index(entries: list[Any], name: str, override: str) -> int:
    if not name.isdecimal() or int(name) >= len(entries):
        raise UserError(f"--set {override}: {name} is no index of a list with {len(entries)} entries")
    return int(name)


def validate(model: type[ModelT], values: dict[str, Any], where: str) -> ModelT:
    """Check values against a model. Raises UserError naming file, key, what was found and the rule."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        lines = []
        for problem in error.errors():
            key = ".".join(str(part) for part in problem["loc"]) or "(top level)"
            found = "" if problem["type"] == "missing" else f" (found {problem['input']!r:.80})"
            remedy = ""
            if problem["type"] == "extra_forbidden":
                remedy = f"; allowed here: {', '.join(sorted(_fields_at(model, problem['loc'])))}"
            lines.append(f"{where}: {key}: {problem['msg']}{found}{remedy}")
        raise UserError("\n".join(lines)) from None


def _fields_at(model: type[BaseModel], loc: tuple[int | str, ...]) -> list[str]:
    """Names allowed where an unknown key was met, following the location through nested models."""
    current: Any = model
    for part in loc[:-1]:
        tagged = [variant for variant in _models_in(current) if part in _tags_of(variant)]
        if tagged:
            current = tagged[0]
        elif part in getattr(current, "model_fields", {}):
            current = current.model_fields[part].annotation
    return [name for found in _models_in(current)[:1] for name in found.model_fields]


def _models_in(annotation: Any) -> list[type[BaseModel]]:  # noqa: ANN401 - a type expression
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in _models_in(argument)]


def _tags_of(model: type[BaseModel]) -> tuple[Any, ...]:
    field = model.model_fields.get("type")
    return getattr(field.annotation, "__args__", ()) if field else ()


def load_config(model: type[ModelT], path: Path, overrides: Sequence[str] = ()) -> ModelT:
    """Read, override and check a stage's config. Raises UserError for anything wrong with it."""
    return validate(model, apply_overrides(load_yaml(path), overrides), str(path))

"""A data card: prose and front matter by hand in `data_cards/<recipe>.md`, every number filled in from the data."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import yaml
from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment
from pydantic import Field

from pipeline.config import StrictModel
from pipeline.config.base import validate
from pipeline.errors import UserError
from pipeline.hub.rows import Shard

PLACEHOLDER = re.compile(r"more information needed|\bTODO\b|\bTBD\b|\bFIXME\b|lorem ipsum", re.IGNORECASE)
FRONT_MATTER = re.compile(r"\A---\n(.*?\n)---\n(.*)\Z", re.DOTALL)

Creator = Literal["machine-generated", "expert-generated", "crowdsourced", "found", "other"]


class FrontMatter(StrictModel):
    """What a person states about a set; sizes, features and files are added from the data."""

    pretty_name: str = Field(min_length=1)
    """Title of the set."""
    license: str = Field(min_length=1)
    """Licence of the whole set, a Hub name such as apache-2.0."""
    language: list[str] = Field(min_length=1)
    """Languages of the texts."""
    task_categories: list[str] = Field(min_length=1)
    """Hub task names."""
    tags: list[str] = Field(default_factory=list)
    """Hub tags."""
    annotations_creators: list[Creator] = Field(default_factory=list)
    """Who judged the answers."""
    language_creators: list[Creator] = Field(default_factory=list)
    """Who wrote the texts."""
    source_datasets: list[str] = Field(default_factory=list)
    """Hub ids of the sets this one is made from."""


@dataclass(frozen=True, slots=True)
class Card:
    """A card as written by hand."""

    path: Path
    front: FrontMatter
    body: str


def read_card(path: Path) -> Card:
    """Read a card. Raises UserError where its front matter is missing or wrong."""
    found = FRONT_MATTER.match(path.read_text(encoding="utf-8"))
    if found is None:
        raise UserError(f"{path}: does not begin with front matter between two lines `---`")
    try:
        values = yaml.safe_load(found[1])
    except yaml.YAMLError as error:
        raise UserError(f"{path}: the front matter is not valid YAML; mend the marked line\n{error}") from None
    return Card(path, validate(FrontMatter, values or {}, str(path)), found[2])


def render_body(card: Card, context: Mapping[str, Any]) -> str:
    """The prose with its numbers. Raises UserError for a name that has no value, and for a placeholder left in."""
    environment = SandboxedEnvironment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["percent"] = lambda value: f"{value:.1%}"
    environment.filters["number"] = lambda value: f"{value:,}"
    try:
        text = environment.from_string(card.body).render(context)
    except (TemplateError, TypeError, ValueError) as error:
        raise UserError(
            f"{card.path}: cannot be filled in: {error}; a card may use {', '.join(sorted(context))}"
        ) from None
    if found := PLACEHOLDER.search(text):
        raise UserError(f"{card.path}: the placeholder `{found[0]}` is left in the text; write what belongs there")
    return text


def render_card(
    card: Card, context: Mapping[str, Any], schema: pa.Schema, shards: Mapping[str, Sequence[Shard]], size: str
) -> str:
    """The whole README.md of a Hub dataset repository."""
    front: dict[str, Any] = card.front.model_dump(exclude_defaults=True)
    front["size_categories"] = [size]
    front["configs"] = [
        {
            "config_name": "default",
            "data_files": [{"split": split, "path": f"data/{split}-*.parquet"} for split in shards],
        }
    ]
    front["dataset_info"] = {
        "features": [feature_of(field.name, field.type) for field in schema],
        "splits": [{"name": split, "num_examples": sum(s.rows for s in found)} for split, found in shards.items()],
        "download_size": sum(shard.bytes for found in shards.values() for shard in found),
    }
    head = yaml.safe_dump(front, sort_keys=False, allow_unicode=True, width=120)
    return f"---\n{head}---\n{render_body(card, context)}".rstrip() + "\n"


def feature_of(name: str, kind: pa.DataType) -> dict[str, Any]:
    """A column in the Hub's `dataset_info` notation."""
    if pa.types.is_list(kind):
        item = kind.value_type
        if pa.types.is_struct(item):
            return {"name": name, "list": [feature_of(field.name, field.type) for field in item]}
        return {"name": name, "list": type_name(item)}
    if pa.types.is_struct(kind):
        return {"name": name, "struct": [feature_of(field.name, field.type) for field in kind]}
    return {"name": name, "dtype": type_name(kind)}


def type_name(kind: pa.DataType) -> str:
    """Arrow's name of a scalar in the Hub's spelling."""
    return {"double": "float64", "float": "float32"}.get(str(kind), str(kind))

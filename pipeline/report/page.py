"""One self-contained HTML page from sections of tables, charts and conversations. Every text is escaped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup


@dataclass(frozen=True, slots=True)
class Tile:
    """One big number at the top of the page."""

    label: str
    value: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Chart:
    """An SVG made by `pipeline.report.charts`."""

    title: str
    svg: Markup
    kind: str = "chart"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under a head; folded tables open on a click."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    folded: bool = False
    kind: str = "table"


@dataclass(frozen=True, slots=True)
class Conversation:
    """A trace: (role, text) in order, and what was decided about it."""

    title: str
    verdict: str
    kept: bool
    messages: Sequence[tuple[str, str]]
    kind: str = "conversation"


Block: TypeAlias = Chart | Table | Conversation


@dataclass(frozen=True, slots=True)
class Section:
    """A heading, a sentence, and blocks."""

    title: str
    intro: str
    blocks: Sequence[Block]


def render_page(title: str, subtitle: str, tiles: Sequence[Tile], sections: Sequence[Section]) -> str:
    """The page as text; it loads nothing from outside."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    template = environment.get_template("page.html.jinja")
    return template.render(title=title, subtitle=subtitle, tiles=tiles, sections=sections) + "\n"

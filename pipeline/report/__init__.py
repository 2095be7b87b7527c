"""A self-contained HTML report: charts as inline SVG, tables, conversations."""

from pipeline.report.charts import Interval, Point, bars, columns, intervals, lines, number
from pipeline.report.page import Block, Chart, Conversation, Section, Table, Tile, render_page

__all__ = [
    "Block",
    "Chart",
    "Conversation",
    "Interval",
    "Point",
    "Section",
    "Table",
    "Tile",
    "bars",
    "columns",
    "intervals",
    "lines",
    "number",
    "render_page",
]

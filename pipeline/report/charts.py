"""Small charts as inline SVG. Colours come from the page's CSS variables, so light and dark both work."""

import math
from collections.abc import Mapping, Sequence

from markupsafe import Markup

WIDTH = 720
SERIES = ("--one", "--two", "--three", "--four")
"""CSS variables of the series colours, in order."""

Point = tuple[float, float]
Interval = tuple[float, float, float]
"""Value, low and high end."""


def number(value: object) -> str:
    """A number for people: thousands apart, four significant digits. Anything else as it is."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return str(value)
    if isinstance(value, int) or (value == int(value) and abs(value) < 1e15):
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 1000 else f"{value:.4g}"


def _svg(height: float, label: str, parts: Sequence[Markup]) -> Markup:
    head = Markup('<svg viewBox="0 0 {} {}" role="img" aria-label="{}">').format(WIDTH, math.ceil(height), label)
    return head + Markup("").join(parts) + Markup("</svg>")


def _text(x: float, y: float, text: str, anchor: str = "start", kind: str = "") -> Markup:
    return Markup('<text x="{:.1f}" y="{:.1f}" text-anchor="{}" class="{}">{}</text>').format(x, y, anchor, kind, text)


def _rect(x: float, y: float, width: float, height: float, colour: str, hint: str) -> Markup:
    return Markup(
        '<rect x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.1f}" rx="2" fill="var({})"><title>{}</title></rect>'
    ).format(x, y, max(width, 0), max(height, 0), colour, hint)


def _line(a: Point, b: Point, kind: str = "axis") -> Markup:
    return Markup('<line x1="{:.1f}" y1="{:.1f}" x2="{:.1f}" y2="{:.1f}" class="{}"/>').format(*a, *b, kind)


def _legend(names: Sequence[str], x: float = 0) -> list[Markup]:
    parts = []
    for name, colour in zip(names, SERIES, strict=False):
        parts += [_rect(x, 4, 10, 10, colour, name), _text(x + 15, 13, name, kind="muted")]
        x += 34 + 7 * len(name)
    return parts


def bars(rows: Sequence[tuple[str, float]], label: str) -> Markup:
    """Horizontal bars with their values, one row each, longest = full width."""
    top = max((value for _, value in rows), default=0) or 1
    parts = []
    for index, (name, value) in enumerate(rows):
        y = index * 28
        length = (WIDTH - 250) * value / top
        parts += [
            _text(168, y + 18, name, "end"),
            _rect(178, y + 5, length, 18, "--one", f"{name}: {number(value)}"),
            _text(186 + length, y + 18, number(value), kind="muted"),
        ]
    return _svg(len(rows) * 28 + 4, label, parts)


def columns(labels: Sequence[str], series: Mapping[str, Sequence[int]], label: str, below: str = "") -> Markup:
    """Vertical columns, side by side where there is more than one series."""
    height, left, bottom = 190.0, 44.0, 190.0 - 8
    top = max((value for values in series.values() for value in values), default=0) or 1
    step = (WIDTH - left - 8) / max(len(labels), 1)
    wide = min(step * 0.8, 90) / max(len(series), 1)
    parts = _legend(list(series), left) if len(series) > 1 else []
    for tick in _ticks(0, top, whole=True):
        y = bottom - (bottom - 26) * tick / top
        parts += [_line((left, y), (WIDTH - 8, y), "grid"), _text(left - 6, y + 4, number(tick), "end", "muted")]
    for index, name in enumerate(labels):
        middle = left + step * (index + 0.5)
        start = middle - wide * len(series) / 2
        for place, (which, values) in enumerate(series.items()):
            tall = (bottom - 26) * values[index] / top
            hint = f"{which}, {name}: {number(values[index])}"
            parts.append(_rect(start + place * wide, bottom - tall, wide - 1, tall, SERIES[place % 4], hint))
        if index % math.ceil(len(labels) / 12) == 0:
            parts.append(_text(middle, height + 9, name, "middle", "muted"))
    if below:
        parts.append(_text((WIDTH + left) / 2, height + 28, below, "middle", "muted"))
    return _svg(height + (34 if below else 16), label, parts)


def lines(series: Mapping[str, Sequence[Point]], label: str, below: str = "") -> Markup:
    """Line chart; points that are no finite numbers are left out."""
    series = {name: [p for p in points if all(map(math.isfinite, p))] for name, points in series.items()}
    xs = [x for points in series.values() for x, _ in points] or [0.0, 1.0]
    ys = [y for points in series.values() for _, y in points] or [0.0, 1.0]
    left, bottom, top = 52.0, 220.0, 26.0
    low, high = min(0.0, min(ys)), max(ys) * 1.05 or 1.0
    first, span = min(xs), (max(xs) - min(xs)) or 1.0

    def place(x: float, y: float) -> Point:
        return left + (WIDTH - left - 12) * (x - first) / span, bottom - (bottom - top) * (y - low) / (
            (high - low) or 1
        )

    parts = _legend(list(series), left)
    for tick in _ticks(low, high):
        y = place(first, tick)[1]
        parts += [_line((left, y), (WIDTH - 12, y), "grid"), _text(left - 6, y + 4, number(tick), "end", "muted")]
    for tick in _ticks(first, first + span, whole=True):
        parts.append(_text(place(tick, low)[0], bottom + 17, number(tick), "middle", "muted"))
    for index, points in enumerate(series.values()):
        path = " ".join("{:.1f},{:.1f}".format(*place(*point)) for point in points)
        parts.append(Markup('<polyline points="{}" style="stroke:var({})"/>').format(path, SERIES[index % 4]))
    if below:
        parts.append(_text((WIDTH + left) / 2, bottom + 36, below, "middle", "muted"))
    return _svg(bottom + (42 if below else 22), label, parts)


def intervals(rows: Mapping[str, Mapping[str, Interval]], label: str) -> Markup:
    """Shares 0..1 with their intervals: one row a group, one whisker a series."""
    left, right = 130.0, WIDTH - 60.0
    names = list(dict.fromkeys(name for group in rows.values() for name in group))

    def place(share: float) -> float:
        return left + (right - left) * share

    parts, y = _legend(names, left), 34.0
    top = y - 6
    for group, values in rows.items():
        parts.append(_text(left - 12, y + 11 * len(values), group, "end"))
        for name, (value, low, high) in values.items():
            colour = SERIES[names.index(name) % 4]
            hint = f"{group}, {name}: {value:.1%} [{low:.1%}, {high:.1%}]"
            parts += [
                _rect(place(low), y + 5, place(high) - place(low), 6, colour, hint),
                Markup('<circle cx="{:.1f}" cy="{:.1f}" r="6" fill="var({})" class="dot"/>').format(
                    place(value), y + 8, colour
                ),
                _text(place(high) + 10, y + 12, f"{value:.1%}", kind="muted"),
            ]
            y += 20
        y += 12
    grid = [_line((place(tick / 4), top), (place(tick / 4), y), "grid") for tick in range(5)]
    scale = [_text(place(tick / 4), y + 16, f"{tick * 25} %", "middle", "muted") for tick in range(5)]
    return _svg(y + 22, label, [*grid, *parts, *scale])


def _ticks(low: float, high: float, whole: bool = False) -> list[float]:
    """About five round numbers from low to high."""
    raw = (high - low) / 5 or 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= raw)
    step = max(step, 1.0) if whole else step
    start = math.ceil(low / step)
    return [index * step for index in range(start, math.floor(high / step + 1e-9) + 1)]

"""Show rows of any table or stage output, long text cut.

PATH is a stage's output folder, one table in it, or a file (.parquet, .jsonl, .json, .csv, text).

    warmstart peek data/demo/filter
    warmstart peek data/demo/verify/verdicts -n 10 --width 80
"""

import argparse
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from pipeline.cli.text import cut, escaped, size
from pipeline.errors import UserError
from pipeline.shards import find_tables, iter_rows

MAX_LINE = 1 << 20
"""Characters read of one line of a text file."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to show, and how much of it."""
    parser.add_argument("path", metavar="PATH", type=Path, help="a stage's output, a table or a file")
    parser.add_argument("-n", dest="rows", metavar="N", type=int, default=3, help="rows of each table (default 3)")
    parser.add_argument("--width", metavar="CHARS", type=int, default=400, help="cut longer text (default 400)")


def run(arguments: argparse.Namespace) -> int:
    """Print the rows. Raises UserError for a path that is not there or holds nothing to show."""
    path, rows, width = arguments.path, arguments.rows, arguments.width
    if rows < 1 or width < 1:
        raise UserError(f"-n {rows} --width {width}: give numbers of 1 or more")
    if not path.exists():
        raise UserError(f"{path}: does not exist; run the stage that makes it, or mend the path")
    show = _printer()
    if path.is_file():
        _show_file(path, rows, width, show)
        return 0
    tables = find_tables(path)
    for number, table in enumerate(tables):
        if number:
            print()
        print(f"{table.folder}: table {table.manifest.table}, {_count(table.manifest.rows, 'row')}")
        _show_rows(itertools.islice(iter_rows(table), rows), width, show)
    others = [file for file in sorted(path.rglob("*")) if file.is_file() and not _in_a_table(file, tables)]
    if others:
        print(f"{'' if not tables else chr(10)}{path}: {_count(len(others), 'other file')}")
        for file in others[:20]:
            print(f"  {size(file.stat().st_size):>9}  {escaped(str(file.relative_to(path)))}")
        if len(others) > 20:
            print(f"  ... {len(others) - 20} more")
    if not tables and not others:
        raise UserError(f"{path}: is an empty folder")
    return 0


def _count(number: int, word: str) -> str:
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _in_a_table(file: Path, tables: Iterable[Any]) -> bool:
    return any(file.is_relative_to(table.folder) for table in tables)


def _show_file(path: Path, rows: int, width: int, show: Callable[[str, str], None]) -> None:
    suffix = path.suffix.lower()
    if suffix == ".parquet":
        _show_rows(itertools.islice(_parquet_rows(path), rows), width, show)
    elif suffix in (".jsonl", ".ndjson"):
        _show_rows(itertools.islice(_json_lines(path), rows), width, show)
    elif suffix == ".json":
        try:
            value = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path}: not valid JSON ({error})") from None
        _show_rows([value if isinstance(value, dict) else {"value": value}], width, show)
    else:
        with path.open("rb") as file:
            if b"\0" in file.read(4096):
                raise UserError(f"{path}: {size(path.stat().st_size)} of binary data; nothing to show as text")
        with path.open(encoding="utf-8", errors="replace") as text:
            for line in itertools.islice(_lines(text), rows):
                print(cut(line, width))


def _lines(file: Any) -> Iterator[str]:  # noqa: ANN401 - a text file
    while line := file.readline(MAX_LINE):
        yield line.rstrip("\n")


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        for batch in pq.ParquetFile(path).iter_batches(batch_size=64):
            yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: cannot be read as Parquet ({error})") from None


def _json_lines(path: Path) -> Iterator[dict[str, Any]]:
    with path.open(encoding="utf-8", errors="replace") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                value = json.loads(line)
            except (ValueError, RecursionError) as error:
                value = {f"line {number} is not JSON": f"{error}: {line.strip()}"}
            yield value if isinstance(value, dict) else {f"line {number}": value}


def _show_rows(rows: Iterable[dict[str, Any]], width: int, show: Callable[[str, str], None]) -> None:
    for number, row in enumerate(rows):
        if number:
            print()
        for name, value in row.items():
            for label, text in _fields(name, value):
                show(label, cut(text, width))


def _fields(name: str, value: object) -> Iterator[tuple[str, str]]:
    """A field as label and text; a conversation gives one line a message."""
    if isinstance(value, str) and value.startswith('[{"') and '"role"' in value:
        try:
            messages = json.loads(value)
        except ValueError:
            messages = None
        if isinstance(messages, list) and all(isinstance(message, dict) for message in messages):
            for message in messages:
                rest = {key: item for key, item in message.items() if key not in ("role", "content") and item}
                said = str(message.get("content") or "")
                yield f"{name}.{message.get('role')}", said + (f" {json.dumps(rest)}" if rest else "")
            return
    if isinstance(value, str):
        yield name, value
    elif value is None:
        yield name, "null"
    else:
        yield name, json.dumps(value, ensure_ascii=False, default=str)


def _printer() -> Callable[[str, str], None]:
    """Plain lines; names in colour in a terminal."""
    if not sys.stdout.isatty():
        return lambda name, text: print(f"  {escaped(name)}: {text}")
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    return lambda name, text: console.print(Text(f"  {escaped(name)}: ", style="cyan") + Text(text, style="default"))

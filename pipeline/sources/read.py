"""Read records of JSONL files, Parquet files and task generators, each with the place it comes from."""

import itertools
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from pipeline.errors import UserError
from pipeline.sources.types import CollectedFile, Found, ReasoningGym, TaskFile

FileT = TypeVar("FileT", TaskFile, CollectedFile)


def iter_jsonl(source: FileT, path: Path) -> Iterator[Found[FileT]]:
    """Rows of a JSONL file; blank lines are no rows. A line that is not one JSON object in UTF-8 carries a problem."""
    with path.open("rb") as file:
        _refuse_other_formats(file.peek(4)[:4], path, source)
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            fields, problem = _parse_line(line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line)
            excerpt = ascii(line[:200]) if problem else ""
            yield Found(source, f"{source.path}:{number}", str(number), source.revision, fields, problem, excerpt)


_FORMATS = {
    b"\xff\xfe": ("is UTF-16 text", "iconv -f UTF-16 -t UTF-8 {path} > utf8.jsonl"),
    b"\xfe\xff": ("is UTF-16 text", "iconv -f UTF-16 -t UTF-8 {path} > utf8.jsonl"),
    b"\x1f\x8b": ("is compressed", "gzip -dc {path} > plain.jsonl"),
    b"\x28\xb5\x2f\xfd": ("is compressed", "zstd -dc {path} > plain.jsonl"),
    b"PAR1": ("is a Parquet file", "write type: parquet in the config"),
}
"""Files in which every line would be rejected, told as what they are."""


def _refuse_other_formats(start: bytes, path: Path, source: TaskFile | CollectedFile) -> None:
    for mark, (what, remedy) in _FORMATS.items():
        if start.startswith(mark):
            raise UserError(
                f"{path}: source {source.name} {what}, but a JSONL source is UTF-8 text with one JSON object a line; "
                f"mend it: {remedy.format(path=path)}"
            )


def _parse_line(line: bytes) -> tuple[dict[str, Any], str]:
    try:
        value = json.loads(line.decode("utf-8"), parse_constant=_refuse_constant)
    except UnicodeDecodeError:
        return {}, "bad_utf8"
    except (ValueError, RecursionError):
        return {}, "malformed_json"
    return (value, "") if isinstance(value, dict) else ({}, "not_an_object")


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


def iter_parquet(source: FileT, path: Path) -> Iterator[Found[FileT]]:
    """Rows of a Parquet file. Raises UserError if it is none, or lacks the columns that a row is made from."""
    try:
        file = pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path}: source {source.name} cannot be read as Parquet ({error})") from None
    present = file.schema_arrow.names
    main = _main_columns(source)
    if not set(main) & set(present):
        names = " nor ".join(f"`{name}`" for name in main)
        raise UserError(
            f"{path}: source {source.name} has {'neither a' if len(main) > 1 else 'no'} column {names}; "
            f"name the right one under `columns`, found: {', '.join(present)}"
        )
    wanted = [name for name in source.columns.model_dump().values() if name in present]
    rows = (row for batch in file.iter_batches(columns=wanted) for row in batch.to_pylist())
    for number, row in enumerate(rows, 1):
        yield Found(source, f"{source.path}:{number}", str(number), source.revision, row)


def _main_columns(source: TaskFile | CollectedFile) -> list[str]:
    columns = source.columns
    if isinstance(source, TaskFile):
        return [columns.prompt, columns.messages]
    by_format = {"messages": "messages", "prompt_completion": "completion", "sharegpt": "conversations"}
    return [str(getattr(columns, by_format[source.format]))]


def iter_reasoning_gym(source: ReasoningGym) -> Iterator[Found[ReasoningGym]]:
    """Tasks of a generator. Raises UserError for an unknown generator or settings that it refuses."""
    import warnings
    from importlib.metadata import version

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a dependency of the library warns about its own syntax
        from reasoning_gym.factory import DATASETS, create_dataset
    if source.generator not in DATASETS:
        raise UserError(
            f"source {source.name}: reasoning_gym has no generator `{source.generator}`; it has: {', '.join(DATASETS)}"
        )
    try:
        made = create_dataset(source.generator, size=source.size, seed=source.seed, **source.parameters)
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(f"source {source.name}: {source.generator} refuses its parameters: {error}") from None
    revision = version("reasoning-gym")
    for number in range(source.size):
        item = made[number]
        fields = {"prompt": item["question"], "answer": item["answer"]}
        yield Found(source, f"{source.generator}:{number}", str(number), revision, fields)


def iter_sources(
    sources: Sequence[TaskFile | ReasoningGym], folder: Path | None
) -> Iterator[Found[TaskFile | ReasoningGym]]:
    """Every record of every source in order. Raises UserError for a source that is missing or empty."""
    paths = {source.name: _path_of(source, folder) for source in sources if isinstance(source, TaskFile)}
    for source in sources:
        if isinstance(source, TaskFile):
            yield from _iter_file(source, paths[source.name])
        else:
            yield from iter_reasoning_gym(source)


def iter_collected(sources: Sequence[CollectedFile], folder: Path) -> Iterator[Found[CollectedFile]]:
    """Every row of every file in order. Raises UserError for a file that is missing or empty."""
    paths = [_path_of(source, folder) for source in sources]
    for source, path in zip(sources, paths, strict=True):
        yield from _iter_file(source, path)


def _iter_file(source: FileT, path: Path) -> Iterator[Found[FileT]]:
    empty = True
    records = iter_jsonl(source, path) if source.type == "jsonl" else iter_parquet(source, path)
    for found in itertools.islice(records, source.rows):
        empty = False
        yield found
    if empty:
        raise UserError(f"{path}: source {source.name} has no rows; fill the file or leave the source out")


def _path_of(source: TaskFile | CollectedFile, folder: Path | None) -> Path:
    if folder is None:
        raise UserError(f"source {source.name} reads the file {source.path}; give its folder with --in sources=DIR")
    path = folder / source.path
    if not path.is_file():
        raise UserError(f"{path}: source {source.name} is not there; mend `path` in the config or add the file")
    return path

"""Tell what became of a task, sample, trace or rejected row, stage by stage.

Reads every table of tasks, samples, verdicts, traces and rejected rows below data/, and the packed rows. A beginning
of the id is enough if only one id has it.

    warmstart why 77f9a9f5
"""

import argparse
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pipeline.cli.text import cut
from pipeline.errors import UserError
from pipeline.shards import FoundTable, find_tables, iter_rows, rows_where, rows_with_prefix

ID_COLUMN = {
    "tasks": "task_id",
    "samples": "sample_id",
    "verdicts": "sample_id",
    "traces": "trace_id",
    "rejected": "id",
}
KIND = {"task_id": "task", "sample_id": "sample", "trace_id": "trace", "id": "rejected row"}
WIDTH = 240


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which id, and where to look."""
    parser.add_argument("id", metavar="ID", help="an id, or its beginning")
    parser.add_argument("--data", metavar="DIR", type=Path, default=Path("data"), help="where to look (default data)")


@dataclass(slots=True)
class Story:
    """The ids that belong together: what was asked for, what it was made from and what was made from it."""

    tasks: set[str] = field(default_factory=set)
    samples: set[str] = field(default_factory=set)
    traces: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    @property
    def rejectable(self) -> set[str]:
        """Ids that a rejected row may carry."""
        return self.tasks | self.samples | self.traces | self.others


def run(arguments: argparse.Namespace) -> int:
    """Print the story. Raises UserError for an id that is not there or a beginning that several have."""
    if not arguments.data.is_dir():
        raise UserError(f"{arguments.data}: is no folder; run a stage first, or name the folder with --data")
    tables = [table for table in find_tables(arguments.data) if table.manifest.table in (*ID_COLUMN, "packed")]
    order = _stage_order()
    tables.sort(key=lambda table: (_recipe(table, arguments.data), *_place(table, arguments.data, order)))
    kind, full = resolve(arguments.id, tables, arguments.data)
    print(f"{kind} {full}")
    for recipe in dict.fromkeys(_recipe(table, arguments.data) for table in tables):
        own = [table for table in tables if _recipe(table, arguments.data) == recipe]
        lines = list(_tell(kind, full, own, arguments.data))
        if lines:
            print(f"\n{recipe}:")
            print("\n".join(f"  {line}" for line in lines))
    return 0


def _stage_order() -> Sequence[str]:
    from pipeline.cli.main import stage_names

    return stage_names()


def _recipe(table: FoundTable, data: Path) -> str:
    return table.folder.relative_to(data).parts[0] if table.folder != data else "."


def _place(table: FoundTable, data: Path, order: Sequence[str]) -> tuple[int, str, int, str]:
    """Stages in the order of the flow; within one, tasks before samples before verdicts."""
    parts = table.folder.relative_to(data).parts[1:]
    stage = parts[0] if parts else ""
    kinds = [*ID_COLUMN, "packed"]
    where = "/".join(parts[1:-1])
    return order.index(stage) if stage in order else len(order), where, kinds.index(table.manifest.table), str(parts)


def resolve(text: str, tables: Sequence[FoundTable], data: Path) -> tuple[str, str]:
    """The kind and the whole id that a beginning stands for."""
    if not text:
        raise UserError("ID is empty; give an id or its beginning")
    kinds: dict[str, str] = {}
    for table in tables:
        if column := ID_COLUMN.get(table.manifest.table):
            for row in rows_with_prefix(table, column, text):
                kinds.setdefault(row[column], KIND[column])
                if kinds[row[column]] == "rejected row":
                    kinds[row[column]] = KIND[column]
    if text in kinds:
        return kinds[text], text
    if not kinds:
        raise UserError(
            f"{text}: no task, sample, trace or rejected row below {data} has this id; see ids with "
            f"`warmstart peek {data}/RECIPE/STAGE`"
        )
    if len(kinds) > 1:
        shown = "\n".join(f"  {kind} {name}" for name, kind in sorted(kinds.items())[:10])
        raise UserError(f"{text}: {len(kinds)} ids begin so; give more of it:\n{shown}")
    ((name, kind),) = kinds.items()
    return kind, name


def _tell(kind: str, full: str, tables: Sequence[FoundTable], data: Path) -> Iterator[str]:
    story = gather(kind, full, tables)
    last, seen = "", False
    for table in tables:
        where = "/".join(table.folder.relative_to(data).parts[1:-1]) or table.folder.name
        found = list(_rows_of(table, story))
        for row in found:
            seen = True
            last = where
            yield from describe(where, table.manifest.table, row)
        if kind != "task" and seen and not found and _passed_by(table, tables, story):
            yield f"{where}: neither kept nor rejected (not used)"
    if seen:
        yield f"last seen in {last}"


def _passed_by(table: FoundTable, tables: Sequence[FoundTable], story: Story) -> bool:
    """Whether a stage that handles traces knows nothing of this one, in no part of its output."""
    if table.manifest.table != "traces" or not story.traces:
        return False
    stage = table.folder.parent.parent if table.folder.parent.name in ("train", "val") else table.folder.parent
    beside = [other for other in tables if other.folder.is_relative_to(stage) and other is not table]
    return not any(True for other in beside for _ in _rows_of(other, story))


def gather(kind: str, full: str, tables: Sequence[FoundTable]) -> Story:
    """Follow the ids: a trace to its sample and task, a sample to its trace and task, a task to all of both."""
    story = Story()
    wanted = {"task": story.tasks, "sample": story.samples, "trace": story.traces}.get(kind, story.others)
    wanted.add(full)
    samples = _rows(tables, "samples", "sample_id", story.samples)
    traces = _rows(tables, "traces", "trace_id", story.traces)
    if kind in ("sample", "trace"):
        story.tasks |= {row["task_id"] for row in (*samples, *traces)}
    if kind == "trace":
        samples = _rows(tables, "samples", "task_id", story.tasks)
        story.samples |= {s["sample_id"] for s in samples if any(_made_from(t, s) for t in traces)}
    elif kind == "sample":
        traces = _rows(tables, "traces", "task_id", story.tasks)
        story.traces |= {t["trace_id"] for t in traces if any(_made_from(t, s) for s in samples)}
    elif kind == "task":
        story.samples |= {row["sample_id"] for row in _rows(tables, "samples", "task_id", story.tasks)}
        story.traces |= {row["trace_id"] for row in _rows(tables, "traces", "task_id", story.tasks)}
    return story


def _rows(tables: Sequence[FoundTable], name: str, column: str, ids: Collection[str]) -> list[dict[str, Any]]:
    return [row for table in tables if table.manifest.table == name and ids for row in rows_where(table, column, ids)]


def _made_from(trace: Mapping[str, Any], sample: Mapping[str, Any]) -> bool:
    """Whether a trace ends with exactly what a sample says."""
    said = json.loads(sample["messages"])
    return bool(said) and json.loads(trace["messages"])[-len(said) :] == said


def _rows_of(table: FoundTable, story: Story) -> Iterator[dict[str, Any]]:
    name = table.manifest.table
    if name == "packed":
        for number, row in enumerate(iter_rows(table)):
            for trace in sorted(story.traces & set(row.get("trace_ids") or ())):
                yield {"trace_id": trace, "row": number}
        return
    ids = {
        "tasks": story.tasks,
        "samples": story.samples,
        "verdicts": story.samples,
        "traces": story.traces,
        "rejected": story.rejectable,
    }[name]
    if ids:
        yield from rows_where(table, ID_COLUMN[name], ids)


def describe(where: str, table: str, row: Mapping[str, Any]) -> Iterator[str]:
    """What one row says, in a line or two."""
    if table == "tasks":
        origin = f"from {row['source']} {row['source_id']}"
        yield f"{where}: task {row['task_id']}, {row['split']}, {row['domain']}, {origin}"
        yield f"    asked: {cut(_last_message(row['messages']), WIDTH)}"
        yield f"    judged by {row['verifier']} against {cut(row['reference'] or 'nothing', WIDTH)}"
    elif table == "samples":
        yield (
            f"{where}: sample {row['sample_id']}, attempt {row['index']} of {row['teacher']}, {row['outcome']}, "
            f"{row['num_output_tokens']} tokens"
        )
        yield f"    said: {cut(_last_message(row['messages']) or row['turns'], WIDTH)}"
    elif table == "verdicts":
        score = "" if row["score"] is None else f", score {row['score']:g}"
        yield (
            f"{where}: {row['verdict']} ({row['reason']}{score}) by {row['verifier']} "
            f"version {row['verifier_version']}, sample {row['sample_id']}"
        )
        if row["evidence"] != "{}":
            yield f"    {cut(row['evidence'], WIDTH)}"
    elif table == "traces":
        rate = "" if row.get("pass_rate") is None else f", its task's pass rate {row['pass_rate']:g}"
        yield f"{where}: kept as trace {row['trace_id']}{rate}"
    elif table == "packed":
        yield f"{where}: trace {row['trace_id']} stands in packed row {row['row']}"
    else:
        yield f"{where}: rejected {row['id']}, {row['reason']}"
        yield f"    {cut(row['evidence'], WIDTH)}"


def _last_message(messages: str) -> str:
    found = json.loads(messages)
    return str(found[-1].get("content") or "") if found else ""

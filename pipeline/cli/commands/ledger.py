"""Look into the ledger of finished samples, check it, make it smaller, or make it again from samples.

Every answer that was ever paid for lies in the ledger, and `warmstart generate` asks only for what is not there. It is
a folder of plain lines, each with a checksum (segments/), and an index that is made again whenever it is lost.

  stats    how many answers and tokens are there, by model and sampling parameters. May run beside a generate run.
  verify   read every line, check its checksum and that the index finds it; exit code 1 if something is damaged. May
           run beside a generate run.
  compact  drop damaged lines and answers that a later one superseded. Says what it would win; --yes does it. A kill at
           any point loses nothing; meanwhile it needs free space for all that is kept.
  import   put the answers of finished samples (the output of generate, pulled from a remote or the Hub) into a ledger
           that lacks them. The config, tasks and model must be those that the samples were made with: each sample's
           seed tells. `warmstart generate` with the same config then asks for nothing and writes the same bytes.

    warmstart ledger stats
    warmstart ledger verify --ledger /shared/ledger
    warmstart ledger compact --yes
    warmstart ledger import --config configs/demo/generate.yaml --in tasks=data/demo/tasks \\
        --in samples=data/demo/generate --in teacher=data/demo/base
"""

import argparse
import json
import shutil
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pipeline.cli.inputs import read_inputs
from pipeline.cli.text import cut, escaped, size
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.engine.importing import Imported
    from pipeline.ledger.upkeep import Checked

ACTIONS = ("stats", "verify", "compact", "import")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which action, on which ledger, and what `import` reads."""
    parser.add_argument("action", metavar="ACTION", choices=ACTIONS, help=", ".join(ACTIONS))
    parser.add_argument("--ledger", metavar="DIR", type=Path, help="default: the one of the machine file")
    parser.add_argument("--yes", action="store_true", help="compact: do it")
    parser.add_argument("--config", metavar="FILE", type=Path, help="import: the generate.yaml of the samples")
    parser.add_argument("--in", dest="inputs", metavar="NAME=PATH", action="append", default=[], help="import: inputs")
    parser.add_argument(
        "--set",
        dest="overrides",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="import: override a config key",
    )


def run(arguments: argparse.Namespace) -> int:
    """Do what the action says. Raises UserError where there is no ledger, or another process is writing it."""
    from pipeline.config import load_machine

    folder: Path = arguments.ledger or load_machine().ledger
    if arguments.action == "import":
        return _import(folder, arguments)
    if arguments.config or arguments.inputs or arguments.overrides:
        raise UserError(f"--config, --in and --set belong to `warmstart ledger import`, not to {arguments.action}")
    if not (folder / "segments").is_dir():
        raise UserError(f"{folder}: holds no ledger; give its folder with --ledger, or run `warmstart generate` first")
    if arguments.action == "stats":
        return _stats(folder)
    return _verify(folder) if arguments.action == "verify" else _compact(folder, arguments.yes)


def _stats(folder: Path) -> int:
    from pipeline.ledger import Ledger
    from pipeline.ledger.segments import path_of, segments_in

    with Ledger(folder, write=False) as ledger:
        totals, damaged = ledger.index.totals(), ledger.index.damaged()
        settings = {number: json.loads(fields) for fields, number in ledger.index.settings().items()}
        answers = len(ledger)
    segments = [path_of(folder / "segments", number) for number in segments_in(folder / "segments")]
    held = sum(path.stat().st_size for path in segments)
    print(f"{folder}: {count(answers, 'answer')}, {size(held)} in {count(len(segments), 'segment')}")
    by_set: dict[int, list[tuple[Any, ...]]] = defaultdict(list)
    for number, *row in totals:
        by_set[number].append(tuple(row))
    for number in [*settings, *(number for number in by_set if number not in settings)]:
        print(f"\n{_short(settings.get(number))}")
        rows = by_set.get(number, [])
        if not rows:
            print("  no answers")
        for reason, answers, prompt, output, held in rows:
            print(
                f"  {escaped(reason):<16} {answers:>11,} answers  {prompt:>13,} prompt and {output:>13,} output tokens"
                f"  {size(held):>9}"
            )
    if damaged:
        print(f"\n{count(damaged, 'damaged line')} met so far; `warmstart ledger verify` names them")
    return 0


def count(number: int, word: str) -> str:
    """`1 answer`, `1,200 answers`."""
    return f"{number:,} {word}{'' if number == 1 else 's'}"


def _short(fields: Mapping[str, Any] | None) -> str:
    """A set of key fields in one line."""
    if fields is None:
        return "key fields unknown: the line that named them is damaged"
    if not fields.get("model_identity"):
        return cut(f"key fields {json.dumps(fields)}", 400)
    rest = {name: value for name, value in fields.items() if name not in ("teacher", "model_identity")}
    rest = {**rest.pop("sampling", {}), **rest.pop("engine", {}), **rest}
    # A running server's revision stands in its identity, and `vllm` says only how it is spoken to.
    parts = [
        f"{name} {json.dumps(value) if isinstance(value, dict | list) else value}"
        for name, value in rest.items()
        if name not in ("model_revision", "vllm") and value not in (None, {}, [])
    ]
    model = f"{fields.get('teacher', '?')}: model {shortened(fields['model_identity'])}"
    return cut(", ".join([model, *parts]), 400)


def shortened(identity: str) -> str:
    """The beginning of a content hash, or a running server's name and revision in whole."""
    return identity if "@" in identity else identity[:12]


def _verify(folder: Path) -> int:
    from pipeline.ledger import Ledger
    from pipeline.ledger.upkeep import check

    with Ledger(folder, write=False) as ledger:
        found = check(ledger)
    print(f"{folder}: {count(found.lines, 'line')}, {size(found.bytes)} in {count(found.segments, 'segment')}")
    print(f"  {count(found.in_force, 'answer')} whole and found by the index")
    if found.superseded:
        print(f"  {count(found.superseded, 'answer')} superseded by a later line of the same key and token limit")
    if found.pending:
        print(f"  {count(found.pending, 'answer')} that the index has not come to yet; the next generate run does")
    if found.sound:
        print("nothing is damaged")
        return 0
    for line in _damage(found):
        print(line)
    return 1


def _damage(found: "Checked") -> Iterator[str]:
    """What is wrong, and the remedy."""
    for place in found.damage:
        yield f"  DAMAGED {place}"
    if found.damaged > len(found.damage):
        yield f"  DAMAGED {found.damaged - len(found.damage):,} more"
    if found.damaged:
        yield (
            f"{count(found.damaged, 'damaged line')}, {size(found.damaged_bytes)}; "
            + (
                f"{count(found.gone, 'answer')} that the index names cannot be read"
                if found.gone
                else "no answer that the index names is lost by it (a kill leaves a torn line that never counted)"
            )
        )
    elif found.gone:
        yield f"{count(found.gone, 'answer')} that the index names cannot be found"
    if found.unindexed:
        yield f"{count(found.unindexed, 'whole answer')} that the index does not find, or finds wrongly"
    yield (
        "`warmstart ledger compact --yes` drops what is damaged and makes the index again; the next generate run asks "
        "for the lost samples again"
    )


def _compact(folder: Path, yes: bool) -> int:
    from pipeline.ledger import Ledger
    from pipeline.ledger.upkeep import COMPACTING, compact, kept_bytes, survey

    with Ledger(folder) as ledger:
        if yes:
            shutil.rmtree(folder / COMPACTING, ignore_errors=True)  # a killed run's
        found = survey(ledger)
        kept = kept_bytes(ledger)
        won = found.bytes - kept
        print(f"{folder}: {size(found.bytes)} in {count(found.segments, 'segment')}")
        print(f"  kept        {count(found.in_force, 'answer')}, {size(kept)}")
        print(f"  superseded  {count(found.superseded, 'answer')}, {size(found.superseded_bytes)}")
        print(f"  damaged     {count(found.damaged, 'line')}, {size(found.damaged_bytes)}")
        if not (found.superseded or found.damaged) and won < 4096:
            print("nothing to win")
            return 0
        if not yes:
            print(f"would win {size(won)} (needs {size(kept)} of free space meanwhile); do it with --yes")
            return 0
        compact(ledger)
    print(f"won {size(won)}")
    return 0


def _import(folder: Path, arguments: argparse.Namespace) -> int:
    from pipeline.config import load_config
    from pipeline.engine.importing import import_samples
    from pipeline.engine.wanted import Wanted
    from pipeline.ledger import Ledger
    from pipeline.records import Sample, Task
    from pipeline.shards import iter_table, read_manifest

    if arguments.config is None:
        raise UserError("import needs --config FILE, the generate.yaml that the samples were made with")
    inputs = read_inputs(arguments.inputs, ("tasks", "samples"), ("teacher",))
    config = load_config(Wanted, arguments.config, arguments.overrides)
    total = read_manifest(inputs["samples"], "samples").rows
    tasks = {task.task_id: task for task in iter_table(inputs["tasks"], Task)}
    samples = iter_table(inputs["samples"], Sample)
    with Ledger(folder) as ledger:
        found = import_samples(config, tasks, samples, inputs.get("teacher"), ledger, total)
    wrong = found.left_out["other_seed"]
    if wrong and not found.imported and not found.known:
        raise UserError(
            f"{inputs['samples']}: all {wrong} samples that could be compared have another seed than follows from "
            f"{arguments.config}; the config or the model is not that of the samples. Give the generate.yaml "
            "(sampling, engine, template_kwargs, seed) and the model folder or revision that they were made with; "
            "nothing was imported"
        )
    for line in _told(folder, found):
        print(line)
    return 0


def _told(folder: Path, found: "Imported") -> Iterator[str]:
    """What became of the samples."""
    from pipeline.engine.importing import LEFT_OUT

    yield f"{folder}: {found.imported:,} of {count(found.samples, 'sample')} imported, {found.known:,} there already"
    for reason, number in sorted(found.left_out.items()):
        of = ", ".join(f"{n:,} of {name}" for name, n in sorted(found.seeds_by_teacher.items()))
        yield f"  {number:,} left out: they {LEFT_OUT[reason]}" + (f": {of}" if reason == "other_seed" else "")
    if found.second_limit:
        yield (
            f"  {found.second_limit:,} were asked with max_tokens_if_cut: the cut answers before them stand in no "
            "sample, so generate asks for those once more"
        )

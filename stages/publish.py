"""Publish traces as a Hub dataset: a folder by default, a repository on the Hub where the config says so.

in:   traces      the traces to publish
      card        data card, `data_cards/<recipe>.md`: prose by hand, numbers filled in
      reports     numbers of the stages, which the card may quote
      evaluation  output of `evaluate`, which the card may quote
out:  data/       one Parquet file or more a split, with `messages` typed
      README.md   the card
      warmstart.json  what the set was made from

    warmstart publish --config configs/demo/publish.yaml --in traces=data/demo/filter --in card=data_cards/demo.md \\
      --in reports=reports/demo --out data/demo/publish --report reports/demo/publish.json

The result is loaded with `load_dataset` and compared row by row before it counts. With `--set to=hub` it goes on to a
pull request, is loaded back from there, merged and tagged; the token is read from the environment variable HF_TOKEN.
"""

import csv
import itertools
import os
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.config import StageConfig
from pipeline.errors import UserError
from pipeline.hub.card import Card, read_card, render_card
from pipeline.hub.facts import Facts, quantiles, texts_of
from pipeline.hub.licences import check_licence, known_licence
from pipeline.hub.reload import load_back
from pipeline.hub.rows import Digest, Shard, fields_used, message_fields, published_schema, typed_row, write_split
from pipeline.hub.secrets import find_secrets
from pipeline.hub.upload import Publisher
from pipeline.records import Report, Trace
from pipeline.report.facts import load_reports
from pipeline.shards import iter_table, sha256_of, write_json, write_text
from pipeline.work import FINGERPRINTS, fingerprint, progress_folder

INPUTS: Mapping[str, str] = {
    "traces": "traces to publish, output of `filter` or a stage after it",
    "card": "data card with front matter",
    "reports": "folder of the stages' reports",
}
OPTIONAL_INPUTS: Mapping[str, str] = {"evaluation": "output of `evaluate`"}
SPLITS: Mapping[str, str] = {"train": "train", "val": "validation", "validation": "validation", "test": "test"}
"""Splits of traces to the Hub's names. `heldout` is absent: what the model is measured on stays unpublished."""
TOKEN = "HF_TOKEN"


class Config(StageConfig):
    """Where the set goes. Nothing leaves this machine unless `to` is `hub`."""

    to: Literal["folder", "hub"] = "folder"
    """`folder` writes the output folder; `hub` uploads it as well."""
    repo_id: str | None = Field(None, pattern=r"^[\w.-]+/[\w.-]+$")
    """Repository, as in name/dataset; also named in the card's call of `load_dataset`."""
    private: bool = True
    """Only `false` makes a new repository public. One that exists keeps its visibility, and has to agree."""
    tag: str = Field("v1", pattern=r"^[\w.-]+$")
    """Version; a tag that stands for other files is refused."""
    reviewed: list[str] = Field(default_factory=list)
    """Ids of traces that look as if they held a secret, and that a person has read and found harmless."""
    streaming: bool = False
    """Load back by streaming, for sets that do not fit on the disk once more; split sizes are then not checked."""
    deadline_s: float = Field(1800.0, gt=0)
    """How long one step may be retried while the Hub is busy or unreachable, in seconds."""

    @model_validator(mode="after")
    def _hub_needs_a_repository(self) -> "Config":
        if self.to == "hub" and self.repo_id is None:
            raise ValueError("to: hub needs repo_id, such as --set repo_id=name/dataset")
        return self


def inspect(traces: Iterable[Trace], card: Card, config: Config, token: str | None) -> tuple[Facts, tuple[str, ...]]:
    """Count the traces and name the fields of their messages. Raises UserError for one that must not be published."""
    facts, used = Facts(), set[str]()
    declared = known_licence(card.front.license)
    for row, trace in enumerate(traces):
        check_licence(declared, trace.trace_id, trace.license)
        if trace.split not in SPLITS:
            raise UserError(
                f"trace {trace.trace_id}: belongs to the split `{trace.split}`, which is not published; publish only "
                f"{', '.join(SPLITS)}"
            )
        kinds = [] if trace.trace_id in config.reviewed else list(find_secrets(texts_of(trace), token))
        if kinds:
            raise UserError(
                f"row {row}, trace {trace.trace_id} of source {trace.source}: looks as if it held a secret "
                f"({', '.join(kinds)}); remove the row, or list the trace in `reviewed` once you have read it"
            )
        used |= fields_used(trace)
        facts.add(trace)
    if not facts.rows:
        raise UserError("there is no trace to publish; look at the report of the stage before")
    return facts, message_fields(used)


def write_data(
    traces: Callable[[], Iterator[Trace]], splits: Iterable[str], used: Sequence[str], output: Path
) -> tuple[dict[str, list[Shard]], dict[str, Digest]]:
    """Write splits by their published names; returns the shards of each and what its rows digest to."""
    digests: dict[str, Digest] = {}

    def rows_of(split: str) -> Iterator[dict[str, Any]]:
        digests[split] = Digest()
        for trace in traces():
            if SPLITS[trace.split] == split:
                row = typed_row(trace, used)
                digests[split].add(row)
                yield row

    schema = published_schema(used)
    return {split: write_split(output / "data", split, schema, rows_of(split)) for split in splits}, digests


def card_context(config: Config, facts: Facts, inputs: Mapping[str, Path], schema: Any) -> dict[str, Any]:  # noqa: ANN401
    """Everything that a card's template may name."""
    where = f'"{config.repo_id}", revision="{config.tag}"' if config.repo_id else '"path/to/this/folder"'
    accuracy: list[dict[str, Any]] = []
    if "evaluation" in inputs:
        with (inputs["evaluation"] / "accuracy.csv").open(newline="", encoding="utf-8") as file:
            accuracy = [
                {key: float(value) if key not in ("model", "domain") else value for key, value in row.items()}
                for row in csv.DictReader(file)
            ]
    return {
        "data": facts.for_card(),
        "reports": load_reports(inputs["reports"]),
        "accuracy": accuracy,
        "columns": [{"name": field.name, "type": str(field.type)} for field in schema],
        "load_call": f"load_dataset({where})",
        "tag": config.tag,
    }


def lineage(config: Config, inputs: Mapping[str, Path], digests: Mapping[str, Digest], data: Path) -> dict[str, Any]:
    """What warmstart.json says: no path, no time, no token, so that equal sets have equal files."""
    packages = ("warmstart", "pyarrow", "datasets", "huggingface_hub")
    return {
        "stage": "publish",
        "config": config.model_dump(mode="json", exclude={"deadline_s", "streaming"}),
        "inputs": {"traces": fingerprint(inputs["traces"], FINGERPRINTS), "card": sha256_of(inputs["card"])},
        "splits": {split: {"rows": digest.rows, "sha256": digest.sha256} for split, digest in digests.items()},
        "files": {f"{data.name}/{path.name}": sha256_of(path) for path in sorted(data.iterdir())},
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except ModuleNotFoundError:  # run from a checkout that is not installed
        return None


def compare(expected: Mapping[str, Digest], found: Mapping[str, Mapping[str, Any]], where: str) -> int:
    """Rows that came back. Raises RuntimeError where they are not the rows that were written."""
    wanted = {split: {"rows": digest.rows, "sha256": digest.sha256} for split, digest in expected.items()}
    if dict(found) != wanted:
        raise RuntimeError(f"{where}: load_dataset gives other rows than were written: {dict(found)}, not {wanted}")
    return sum(digest.rows for digest in expected.values())


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write the folder, load it back, and take it to the Hub if told to."""
    token = os.environ.get(TOKEN)
    if config.to == "hub" and not token:
        raise UserError(
            f"to: hub needs a write token in the environment variable {TOKEN}; it is read from nowhere else"
        )

    def traces() -> Iterator[Trace]:
        return itertools.islice(iter_table(inputs["traces"], Trace), config.limit)

    card = read_card(inputs["card"])
    facts, used = inspect(traces(), card, config, token)
    splits = dict.fromkeys(published for split, published in SPLITS.items() if facts.splits[split])
    shards, digests = write_data(traces, splits, used, output)
    schema = published_schema(used)
    text = render_card(card, card_context(config, facts, inputs, schema), schema, shards, facts.size_category())
    if kinds := list(find_secrets(text, token)):
        raise UserError(f"{inputs['card']}: the card looks as if it held a secret ({', '.join(kinds)}); remove it")
    write_text(output / "README.md", text)
    write_json(output / "warmstart.json", lineage(config, inputs, digests, output / "data"))
    cache = progress_folder(output) / "load"

    def check(where: str, revision: str | None, token: str | None) -> int:
        shutil.rmtree(cache, ignore_errors=True)
        found = load_back(where, revision, config.streaming, cache, token)
        shutil.rmtree(cache)
        return compare(digests, found, f"{where}@{revision}" if revision else where)

    report: Report = {
        "rows": facts.rows,
        "prompts": len(facts.prompts),
        **{f"rows_{split}": digest.rows for split, digest in digests.items()},
        **{f"rows_{domain}": count for domain, count in sorted(facts.domains.items())},
        "output_tokens": quantiles(facts.lengths)["total"],
        "shards": sum(len(found) for found in shards.values()),
        "data_bytes": sum(shard.bytes for found in shards.values() for shard in found),
        "loaded_back_rows": check(str(output.resolve()), None, None),
    }
    if config.to == "hub":
        assert token is not None and config.repo_id is not None
        repo_id = config.repo_id
        publisher = Publisher(repo_id, token, config.deadline_s)
        done = publisher.publish(output, config.private, config.tag, partial(_check_revision, check, repo_id, token))
        report |= {"hub_commit": done.commit, "hub_uploaded_files": done.uploaded_files, "hub_private": config.private}
    return report


def _check_revision(check: Callable[[str, str, str], int], repo_id: str, token: str, revision: str) -> None:
    check(repo_id, revision, token)

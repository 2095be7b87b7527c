"""Render, mask and pack traces into token rows for one training phase.

In: traces (only split `train`) and the model folder whose tokenizer and template are used. Out: `packed/` with
`input_ids`, `labels` (-100 where there is no loss), `seq_lengths` and `trace_ids` of each row, `rejected/`, and
`packing.json` with the numbers and the hashes of tokenizer and template. A trace is one document; it is one for each
user turn where the template drops earlier thinking, and `added_by_split` counts the further ones. Documents are never
cut: traces + added_by_split = documents + rejected + skipped (those of another split).

    warmstart pack --config configs/demo/pack.yaml --set phase=general --in traces=data/demo/mix/general \\
        --in tokenizer=data/demo/base --out data/demo/pack/general --report reports/demo/pack/general.json
"""

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pipeline.chat.mask import Document, Refusal, encode_all
from pipeline.chat.pack import pack
from pipeline.chat.template import ChatFormat, load_chat_format
from pipeline.cluster import map_tasks
from pipeline.config import PhasedConfig, StrictModel, load_machine
from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Trace, canonical_json, content_id
from pipeline.shards import Part, TableWriter, iter_part, split_parts, write_json, write_table
from pipeline.train.rows import PACKED_SCHEMA, PACKED_TABLE

INPUTS: Mapping[str, str] = {
    "traces": "traces to train on, output of `mix`",
    "tokenizer": "model folder with the student's tokenizer and chat template",
}


class PhaseConfig(StrictModel):
    """What one training phase is made of."""

    row_length: int = Field(ge=8)
    """Tokens a row holds at most; longer documents are rejected."""


class Config(PhasedConfig[PhaseConfig]):
    """Which phase to pack, and how."""


@dataclass(frozen=True, slots=True)
class Named:
    """A document and what it is of."""

    name: str
    """The trace's id, with the number of the user turn where the trace gave several."""
    trace_id: str
    domain: str
    document: Document


@dataclass(frozen=True, slots=True)
class Encoded:
    """What became of a part's traces."""

    documents: list[Named]
    rejected: list[Rejected]
    skipped: int
    """Traces of another split."""
    added: int
    """Documents beyond one a trace."""


@dataclass(frozen=True, slots=True)
class EncodePart:
    """Encode one part with a model folder's chat format; sent to workers."""

    tokenizer: Path
    phase: PhaseConfig

    def __call__(self, part: Part) -> Encoded:
        """Read, select, render and mask."""
        chat = load_chat_format(self.tokenizer)
        documents: list[Named] = []
        rejected: list[Rejected] = []
        skipped = added = 0
        for trace in iter_part(part, Trace):
            if trace.split != "train":
                skipped += 1
                continue
            found = encode_trace(chat, trace.messages, trace.tools, self.phase.row_length)
            added += len(found) - 1
            for turn, document in enumerate(found):
                if isinstance(document, Refusal):
                    evidence = {**document.evidence, **({"user_turn": turn} if len(found) > 1 else {})}
                    rejected.append(Rejected(trace.trace_id, "pack", document.reason, canonical_json(evidence)))
                else:
                    name = trace.trace_id if len(found) == 1 else f"{trace.trace_id}#{turn}"
                    documents.append(Named(name, trace.trace_id, trace.domain, document))
        return Encoded(documents, rejected, skipped, added)


def encode_trace(chat: ChatFormat, messages: str, tools: str | None, row_length: int) -> list[Document | Refusal]:
    """Token ids and labels of one trace's documents, each within the row's length, or why one is refused."""
    found = encode_all(chat, json.loads(messages), json.loads(tools) if tools else None)
    return [
        Refusal("too_long", {"tokens": len(document.input_ids), "row_length": row_length})
        if isinstance(document, Document) and len(document.input_ids) > row_length
        else document
        for document in found
    ]


def order_rows(rows: Sequence[list[str]], seed: int) -> list[list[str]]:
    """Rows in an order that depends on seed and content alone; packing leaves the longest documents in front."""
    return sorted(rows, key=lambda row: content_id(seed, row))


def write_rows(output: Path, rows: Sequence[list[str]], documents: Mapping[str, Named]) -> None:
    """Write the packed table."""
    with TableWriter(output / PACKED_TABLE, PACKED_TABLE, PACKED_SCHEMA) as writer:
        for row in rows:
            parts = [documents[name].document for name in row]
            writer.write(
                (
                    [token for part in parts for token in part.input_ids],
                    [label for part in parts for label in part.labels],
                    [len(part.input_ids) for part in parts],
                    [documents[name].trace_id for name in row],
                )
            )


def training_traces(path: Path) -> Path:
    """The table to train on: `train/` of a mix, or a table of traces as it is."""
    return path / "train" if (path / "train").is_dir() else path


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Encode every trace of the phase, pack the documents, write rows and rejected traces."""
    phase = config.chosen()
    parts = split_parts(training_traces(inputs["traces"]), Trace, config.limit)
    encoded: dict[int, Encoded] = dict(map_tasks(EncodePart(inputs["tokenizer"], phase), parts, load_machine().workers))
    ordered = [encoded[index] for index in range(len(parts))]
    rejected = [row for part in ordered for row in part.rejected]
    documents: dict[str, Named] = {}
    for found in (found for part in ordered for found in part.documents):
        if found.name in documents:
            rejected.append(Rejected(found.trace_id, "pack", "repeated_id", canonical_json({})))
        documents.setdefault(found.name, found)
    lengths = {name: len(found.document.input_ids) for name, found in documents.items()}
    rows = order_rows(pack(lengths, phase.row_length), config.seed)
    write_rows(output, rows, documents)
    write_table(output, Rejected, rejected)
    report = summarise(phase, len(rows), documents.values(), rejected)
    report["skipped"] = sum(part.skipped for part in ordered)
    report["added_by_split"] = sum(part.added for part in ordered)
    check_budget(config, report, output)
    hashes = load_chat_format(inputs["tokenizer"]).digest()
    write_json(output / "packing.json", {"phase": config.phase, "row_length": phase.row_length, **hashes, **report})
    return report


def summarise(phase: PhaseConfig, rows: int, documents: Collection[Named], rejected: Sequence[Rejected]) -> Report:
    """The numbers of what was packed and rejected; trained tokens by domain as well."""
    tokens = sum(len(found.document.input_ids) for found in documents)
    trained: Counter[str] = Counter()
    for found in documents:
        trained[found.domain] += found.document.num_trained
    reasons = Counter(row.reason for row in rejected)
    return {
        "documents": len(documents),
        "rejected": len(rejected),
        "rows": rows,
        "tokens": tokens,
        "trained_tokens": trained.total(),
        **{f"trained_tokens_{domain}": trained[domain] for domain in sorted(trained)},
        "fill": round(tokens / (rows * phase.row_length), 4) if rows else 0.0,
        **{f"rejected_{reason}": reasons[reason] for reason in sorted(reasons)},
    }


def check_budget(config: Config, report: Report, output: Path) -> None:
    """Raise UserError if nothing was packed or too much was rejected."""
    rejected = int(report["rejected"])
    documents = int(report["documents"]) + rejected
    reasons = ", ".join(f"{key[9:]} {value}" for key, value in report.items() if key.startswith("rejected_"))
    if rejected > config.max_rejected * documents:
        raise UserError(
            f"{rejected} of {documents} documents were rejected ({reasons}), more than max_rejected: "
            f"{config.max_rejected}; read them in {output / 'rejected'}, mend the traces or raise max_rejected"
        )
    if not report["documents"]:
        raise UserError(
            f"phase {config.phase}: no trace is left to pack ({report['skipped']} of another split, "
            f"{rejected} rejected{': ' + reasons if reasons else ''}); widen phases.{config.phase} in the mix or "
            "collect more traces"
        )

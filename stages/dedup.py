"""Drop repeated responses and prompts that ask what another prompt asks.

in:   traces  the output of `filter`
out:  traces/    kept, in the order of the input
      rejected/  the others, each with the prompt or response that stays for it

The unit is the prompt with all its responses: several answers to one question are wanted. A prompt goes only if its
words overlap (`threshold`) with those of one that stays and both ask the same: equal numbers, symbols, polarity words
(`at most`, `at least`) and case of units. Of two the verified one stays, then the one of higher pass rate, then the
longer.

    warmstart dedup --config configs/demo/dedup.yaml --in traces=data/demo/filter --out data/demo/dedup \\
      --report reports/demo/dedup.json
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from pipeline.cluster import map_tasks
from pipeline.config import StageConfig, load_machine
from pipeline.curate.conversation import answer_of, question_of
from pipeline.curate.duplicates import Dropped, Row, choose_rows
from pipeline.curate.meaning import tokens_of
from pipeline.curate.signatures import Banding, band_keys
from pipeline.records import Rejected, Report, Trace, canonical_json, content_id
from pipeline.shards import Part, iter_part, iter_table, split_parts, write_sifted

INPUTS: Mapping[str, str] = {"traces": "traces, output of `filter`"}


class Config(StageConfig):
    """What counts as a copy."""

    threshold: float = Field(0.8, gt=0, le=1)
    """Least Jaccard similarity of the word runs of two prompts."""
    shingle_words: int = Field(5, ge=1)
    """Words in a run; a shorter prompt is one run."""
    bands: int = Field(20, ge=1)
    """Bands of a MinHash signature; two prompts with an equal band are compared."""
    rows: int = Field(6, ge=1)
    """Hashes in a band. With 20 bands of 6, a pair at similarity 0.8 is found with a chance of 0.998."""

    def banding(self) -> Banding:
        """How candidates are found."""
        return Banding(self.shingle_words, self.bands, self.rows, self.seed)


@dataclass(frozen=True, slots=True)
class ReadPart:
    """Read one part and sign its prompts; sent to workers."""

    banding: Banding

    def __call__(self, part: Part) -> list[Row]:
        """One row a trace, in order."""
        traces = list(iter_part(part, Trace))
        questions = [question_of(trace.messages) for trace in traces]
        signed = zip(traces, questions, band_keys(questions, self.banding), strict=True)
        return [_row_of(trace, question, bands) for trace, question, bands in signed]


def _row_of(trace: Trace, question: str, bands: tuple[bytes, ...]) -> Row:
    answer = " ".join(token.text for token in tokens_of(answer_of(trace.messages)))
    return Row(
        trace_id=trace.trace_id,
        prompt_id=trace.prompt_id,
        question=question,
        answer_id=content_id("answer", answer),
        bands=bands,
        passed=trace.verdict == "pass",
        pass_rate=trace.pass_rate,
        length=len(answer),
    )


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Choose by content, then write in the order of the input."""
    parts = split_parts(inputs["traces"], Trace, config.limit)
    read = dict(map_tasks(ReadPart(config.banding()), parts, load_machine().workers))
    rows = [row for index in range(len(parts)) for row in read[index]]
    dropped = choose_rows(rows, config.threshold, config.shingle_words)
    traces = itertools.islice(iter_table(inputs["traces"], Trace), config.limit)
    sifted = write_sifted(output, Trace, sift(traces, dropped), config.max_rejected)
    before = {row.prompt_id for row in rows}
    after = {row.prompt_id for index, row in enumerate(rows) if index not in dropped}
    return {
        "traces": sifted.read,
        "kept": sifted.kept,
        **sifted.report(),
        "prompts": len(before),
        "prompts_kept": len(after),
        "candidate_chance_at_threshold": round(config.banding().chance(config.threshold), 4),
    }


def sift(traces: Iterator[Trace], dropped: Mapping[int, Dropped]) -> Iterator[Trace | Rejected]:
    """Traces as they are, or as rejected rows."""
    for index, trace in enumerate(traces):
        found = dropped.get(index)
        yield (
            trace
            if found is None
            else Rejected(
                trace.trace_id, "dedup", found.reason, canonical_json({"prompt_id": trace.prompt_id, **found.evidence})
            )
        )

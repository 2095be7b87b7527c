"""What a card may say of a set, counted from the rows that are published."""

import json
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any

from pipeline.records import Trace

RATE_BINS = 4
SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)


@dataclass(slots=True)
class Facts:
    """Counts over the published traces; holds numbers and prompt ids, no texts."""

    rows: int = 0
    splits: Counter[str] = field(default_factory=Counter)
    domains: Counter[str] = field(default_factory=Counter)
    sources: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Rows by source and licence."""
    teachers: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    pass_rates: Counter[int] = field(default_factory=Counter)
    lengths: Counter[int] = field(default_factory=Counter)
    """Rows by output tokens."""
    prompts: set[str] = field(default_factory=set)
    domain_prompts: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    def add(self, trace: Trace) -> None:
        """Count one trace."""
        self.rows += 1
        self.splits[trace.split] += 1
        self.domains[trace.domain] += 1
        self.sources[trace.source, trace.license] += 1
        self.teachers[trace.teacher or "not stated"] += 1
        self.verdicts[trace.verdict] += 1
        if trace.pass_rate is not None:
            self.pass_rates[min(RATE_BINS - 1, int(trace.pass_rate * RATE_BINS))] += 1
        if trace.num_output_tokens is not None:
            self.lengths[trace.num_output_tokens] += 1
        self.prompts.add(trace.prompt_id)
        self.domain_prompts[trace.domain].add(trace.prompt_id)

    def for_card(self) -> dict[str, Any]:
        """The names that a card's template may use as `data`."""
        return {
            "rows": self.rows,
            "prompts": len(self.prompts),
            "domains": {
                name: {"rows": count, "prompts": len(self.domain_prompts[name])}
                for name, count in sorted(self.domains.items())
            },
            "sources": [
                {"name": name, "license": license, "rows": count}
                for (name, license), count in sorted(self.sources.items())
            ],
            "teachers": dict(sorted(self.teachers.items())),
            "verdicts": dict(sorted(self.verdicts.items())),
            "pass_rates": [
                {"low": bin / RATE_BINS, "high": (bin + 1) / RATE_BINS, "rows": self.pass_rates[bin]}
                for bin in range(RATE_BINS)
            ],
            "tokens": quantiles(self.lengths),
        }

    def size_category(self) -> str:
        """The Hub's `size_categories` of this many rows."""
        return next((name for limit, name in SIZES if self.rows < limit), "n>10M")


def quantiles(lengths: Counter[int]) -> dict[str, int]:
    """Total, median, 95th percentile and largest of counted lengths; all zero for none."""
    rows = lengths.total()
    places = {"median": (rows - 1) // 2, "p95": (rows - 1) * 95 // 100, "max": rows - 1}
    found = {"total": sum(length * count for length, count in lengths.items()), **dict.fromkeys(places, 0)}
    passed = 0
    for length in sorted(lengths):
        for name, place in places.items():
            if passed <= place < passed + lengths[length]:
                found[name] = length
        passed += lengths[length]
    return found


def texts_of(trace: Trace) -> str:
    """Everything of a trace that a secret could stand in, as one text with escapes undone."""
    parts = [trace.source, trace.source_id, trace.teacher or "", *_strings(json.loads(trace.messages))]
    return "\n".join([*parts, *_strings(json.loads(trace.tools or "null"))])


def _strings(value: Any) -> list[str]:  # noqa: ANN401 - any JSON value
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        value = [*value.keys(), *value.values()]
    return [text for part in value for text in _strings(part)] if isinstance(value, list) else []

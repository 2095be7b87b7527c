"""Choose what one training phase is made of, and split off traces for validation.

in:   traces  the output of `decontaminate`
out:  train/     traces to train on, within the phase's token budget
      val/       traces of the prompts set aside, by hash of the prompt: the same ones in every phase
      rejected/  the traces that the phase does not use, with the reason

Traces in = train + val + rejected. Tokens are those of the teacher's output where they are known, else a quarter of the
characters of the response. No trace is taken twice; the report states the share of each domain that one epoch uses.

    warmstart mix --config configs/demo/mix.yaml --set phase=general --in traces=data/demo/decontaminate \\
      --out data/demo/mix/general --report reports/demo/mix/general.json
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field, field_validator

from pipeline.config import PhasedConfig, StrictModel
from pipeline.curate.conversation import answer_of
from pipeline.curate.mixing import Entry, position_of, take, targets_of
from pipeline.errors import UserError
from pipeline.records import Rejected, Report, Trace, canonical_json, schema_of
from pipeline.shards import TableWriter, iter_table, row_of, write_table

INPUTS: Mapping[str, str] = {"traces": "traces, output of `decontaminate`"}
CHARACTERS_PER_TOKEN = 4


class PhaseConfig(StrictModel):
    """What one training phase is made of."""

    domains: list[str] | None = None
    """Domains that take part; left out, all do."""
    weights: dict[str, float] | None = None
    """Share of the tokens by domain, in any unit; a domain not named gets none. Left out, all give alike."""
    token_budget: int | None = Field(None, ge=1)
    """Output tokens to train on in one epoch; left out, as many as there are."""

    @field_validator("weights")
    @classmethod
    def _weights_are_shares(cls, weights: dict[str, float] | None) -> dict[str, float] | None:
        if weights is not None and (min(weights.values(), default=0) < 0 or not sum(weights.values())):
            raise ValueError("weights are 0 or more, and one at least is more")
        return weights


class Config(PhasedConfig[PhaseConfig]):
    """Which phase to mix, and how."""

    val_fraction: float = Field(0.05, ge=0, lt=1)
    """Share of prompts set aside for validation."""


def tokens_of(trace: Trace) -> int:
    """Output tokens of a trace, estimated where nobody counted them."""
    if trace.num_output_tokens is not None:
        return trace.num_output_tokens
    return max(1, len(answer_of(trace.messages)) // CHARACTERS_PER_TOKEN)


@dataclass(frozen=True, slots=True)
class Plan:
    """Where every trace goes."""

    places: list[str]
    """`train`, `val`, or why a trace is not used; one a trace, in order."""
    available: dict[str, int]
    """Tokens to train on by domain, before the budget."""
    used: dict[str, int]
    """Tokens to train on by domain, within the budget."""


def plan_mix(config: Config, traces: Iterator[Trace]) -> Plan:
    """Decide about every trace. Raises UserError if a weighted domain is not there or nothing is left to train on."""
    phase, places = config.chosen(), []
    entries: list[Entry] = []
    for index, trace in enumerate(traces):
        weighted = phase.weights is None or phase.weights.get(trace.domain, 0) > 0
        if trace.split != "train":
            places.append("heldout")
        elif not weighted or (phase.domains is not None and trace.domain not in phase.domains):
            places.append("other_domain")
        elif position_of(trace.prompt_id, config.seed) < config.val_fraction:
            places.append("val")
        else:
            places.append("over_budget")
            entries.append(Entry(index, trace.trace_id, trace.prompt_id, trace.domain, tokens_of(trace)))
    available = Counter[str]()
    for entry in entries:
        available[entry.domain] += entry.tokens
    check_weights(config, available)
    taken = take(entries, targets_of(available, phase.weights, phase.token_budget), config.seed)
    used = Counter(dict.fromkeys(available, 0))
    for entry in entries:
        if entry.index in taken:
            places[entry.index] = "train"
            used[entry.domain] += entry.tokens
    if not taken:
        counts = ", ".join(f"{name} {count}" for name, count in Counter(places).items()) or "no traces came in"
        raise UserError(
            f"phase {config.phase}: nothing is left to train on ({counts}); widen phases.{config.phase} or collect "
            "more traces"
        )
    return Plan(places, dict(sorted(available.items())), dict(used))


def check_weights(config: Config, available: Mapping[str, int]) -> None:
    """Raise UserError for a weighted domain without a trace: its share would go missing in silence."""
    lacking = [name for name, weight in (config.chosen().weights or {}).items() if weight and not available.get(name)]
    if lacking:
        raise UserError(
            f"phases.{config.phase}.weights: no trace to train on has the domain {', '.join(lacking)}; "
            f"the domains are {', '.join(sorted(available)) or 'none'}"
        )


def write_mix(output: Path, traces: Iterator[Trace], places: Sequence[str]) -> None:
    """Write both tables and the rejected rows."""
    rejected: list[Rejected] = []
    schema = schema_of(Trace)
    with TableWriter(output / "train", "traces", schema) as train, TableWriter(output / "val", "traces", schema) as val:
        tables = {"train": train, "val": val}
        for trace, place in zip(traces, places, strict=True):
            if place in tables:
                tables[place].write(row_of(trace))
            else:
                rejected.append(Rejected(trace.trace_id, "mix", place, canonical_json({"domain": trace.domain})))
    write_table(output, Rejected, rejected)


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Plan, then write in the order of the input."""

    def traces() -> Iterator[Trace]:
        return itertools.islice(iter_table(inputs["traces"], Trace), config.limit)

    plan = plan_mix(config, traces())
    write_mix(output, traces(), plan.places)
    counts = Counter(plan.places)
    unused = {name: count for name, count in sorted(counts.items()) if name not in ("train", "val")}
    check_rejected(config, len(plan.places), unused)
    budget = config.chosen().token_budget
    used = sum(plan.used.values())
    return {
        "traces": len(plan.places),
        "train": counts["train"],
        "val": counts["val"],
        "rejected": sum(unused.values()),
        **{f"rejected_{name}": count for name, count in unused.items()},
        "train_tokens": used,
        **({} if budget is None else {"budget_tokens": budget, "short_tokens": max(0, budget - used)}),
        **{f"train_tokens_{domain}": tokens for domain, tokens in sorted(plan.used.items())},
        **{f"epochs_{name}": round(plan.used[name] / tokens, 4) for name, tokens in plan.available.items() if tokens},
    }


def check_rejected(config: Config, read: int, unused: Mapping[str, int]) -> None:
    """Raise UserError if more than `max_rejected` is not used."""
    if sum(unused.values()) > config.max_rejected * read:
        reasons = ", ".join(f"{name} {count}" for name, count in unused.items())
        raise UserError(
            f"{sum(unused.values())} of {read} traces are not used ({reasons}), more than max_rejected: "
            f"{config.max_rejected}; widen phases.{config.phase} or raise max_rejected"
        )

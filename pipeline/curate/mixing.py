"""Share a token budget out among domains, and take whole traces in an order given by content."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pipeline.records import content_id


@dataclass(frozen=True, slots=True)
class Entry:
    """What a mix knows of a trace."""

    index: int
    trace_id: str
    prompt_id: str
    domain: str
    tokens: int


def position_of(prompt_id: str, seed: int) -> float:
    """Where in 0..1 a prompt falls: by its hash, so it is the same in every phase and whatever else there is."""
    return int(content_id("val", seed, prompt_id)[:16], 16) / 2**64


def targets_of(available: Mapping[str, int], weights: Mapping[str, float] | None, budget: int | None) -> dict[str, int]:
    """Tokens to take of each domain.

    Without weights, domains share the budget as they share the tokens. Without a budget, weights take as much as the
    scarcest domain allows. A domain never gives more than it has; what it lacks is not made up by others.
    """
    if weights is None:
        total = sum(available.values())
        share = 1.0 if budget is None or budget >= total else budget / total
        return {domain: int(tokens * share) for domain, tokens in available.items()}
    whole = sum(weights.values())
    wanted = {domain: weight / whole for domain, weight in weights.items() if weight}
    if budget is None:
        budget = int(min(available.get(domain, 0) / share for domain, share in wanted.items()))
    return {domain: min(available[domain], round(wanted.get(domain, 0.0) * budget)) for domain in available}


def take(entries: Sequence[Entry], targets: Mapping[str, int], seed: int) -> set[int]:
    """Indices of the traces within each domain's target: whole traces, in an order given by seed and content.

    A larger target takes all that a smaller one takes.
    """
    by_domain: dict[str, list[Entry]] = defaultdict(list)
    for entry in entries:
        by_domain[entry.domain].append(entry)
    taken: set[int] = set()
    for domain, members in by_domain.items():
        left = targets[domain]
        for entry in sorted(members, key=lambda e: (content_id("mix", seed, e.prompt_id), e.trace_id, e.index)):
            left -= entry.tokens
            if left < 0:
                break
            taken.add(entry.index)
    return taken

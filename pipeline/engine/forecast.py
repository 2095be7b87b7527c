"""From a pilot of a few tasks to the whole set: totals with 90 % intervals. Arithmetic alone, no model and no disk.

Samples of a task are not independent, so everything is drawn by task: a Bayesian bootstrap (Rubin 1981) weights the
pilot's tasks anew 2,000 times, and each time the tasks that were not asked are drawn from them. A share that was 0 or
1 in the whole pilot would have no width that way; two more tasks of weight one half, at either end, give it the width
of Jeffreys' interval.
"""

import hashlib
import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

DRAWS = 2_000
COVERED = 0.9
"""Share of the draws inside an interval."""
_SIMULATED_DRAWS, _SIMULATED_TASKS = 200, 1_000
_RATES, _STRENGTHS = 49, 25  # grid of beta distributions that a pilot's pass rates are compared with


@dataclass(frozen=True, slots=True)
class Estimate:
    """A number and its 90 % interval."""

    low: float
    mean: float
    high: float

    def times(self, factor: float) -> "Estimate":
        """In another unit; the factor is not negative."""
        return Estimate(self.low * factor, self.mean * factor, self.high * factor)

    def plus(self, known: float) -> "Estimate":
        """With a part that is known."""
        return Estimate(self.low + known, self.mean + known, self.high + known)


def choose_pilot(domains: Mapping[str, str], size: int, seed: int) -> set[str]:
    """`size` of the tasks, given as {task_id: domain}: each domain's share, and in it those with the smallest hash.

    Which tasks they are depends on their ids and the seed, not on their order; a larger pilot holds the smaller one's
    tasks of a domain.
    """
    counts = Counter(domains.values())
    size = min(size, len(domains))
    shares = {domain: size * count / len(domains) for domain, count in sorted(counts.items())}
    places = {domain: int(share) for domain, share in shares.items()}
    by_rest = sorted(shares, key=lambda domain: (places[domain] - shares[domain], domain))
    for domain in by_rest[: size - sum(places.values())]:
        places[domain] += 1
    chosen: set[str] = set()
    for domain, place in places.items():
        own = (task_id for task_id, of in domains.items() if of == domain)
        chosen.update(heapq.nsmallest(place, own, key=lambda task_id: _hash(seed, task_id)))
    return chosen


def _hash(seed: int, task_id: str) -> bytes:
    return hashlib.blake2b(f"{seed} {task_id}".encode(), digest_size=8, person=b"pilot").digest()


def forecast_sum(values: Sequence[float], others: int, seed: int, ends: tuple[float, ...] = ()) -> Estimate:
    """The sum over `others` tasks of the kind whose values the pilot measured; `ends` are the bounds of a value."""
    import numpy as np

    if not values or others <= 0:
        return Estimate(0.0, 0.0, 0.0)
    rng = np.random.default_rng(seed)
    atoms = np.array([*values, *ends], dtype=float)
    weights = _weights(rng, len(values), len(ends), DRAWS)
    sums = rng.multinomial(others, weights) @ atoms
    return _estimate(sums, others * sum(values) / len(values))


def _weights(rng: "np.random.Generator", tasks: int, ends: int, draws: int) -> Any:  # noqa: ANN401 - an array
    shape = [1.0] * tasks + [0.5] * ends
    drawn = rng.standard_gamma(shape, (draws, tasks + ends))
    return drawn / drawn.sum(axis=1, keepdims=True)


def _estimate(draws: Any, mean: float | None = None) -> Estimate:  # noqa: ANN401 - an array
    import numpy as np

    low, high = np.quantile(draws, [(1 - COVERED) / 2, (1 + COVERED) / 2])
    middle = float(np.mean(draws)) if mean is None else mean
    return Estimate(min(float(low), middle), middle, max(float(high), middle))


@dataclass(frozen=True, slots=True)
class Tried:
    """A pilot's task: how its attempts ended, and what one cost."""

    right: int
    wrong: int
    tokens: float
    """Output tokens of an attempt, on average."""


@dataclass(frozen=True, slots=True)
class Rule:
    """When a task is asked once more, and when the set is complete; see `Target` of the stage generate."""

    passing: int
    tries: int
    rows: int | None = None
    tokens: int | None = None
    hopeless: frozenset[tuple[int, int]] = frozenset()
    """(right, wrong) after which a task is given up."""


@dataclass(frozen=True, slots=True)
class TargetForecast:
    """What reaching a target takes."""

    tasks: Estimate
    """Tasks that are tried."""
    attempts: Estimate
    asked: Estimate
    """Attempts that the ledger does not hold yet."""
    asked_tokens: Estimate
    """Their output tokens."""
    passing: Estimate
    served: Estimate
    """Tasks with as many passing samples as wanted."""
    pass_rate: Estimate
    """Of one attempt at one task, from 0 to 1."""
    reached: float
    """Probability that rows or tokens are reached before the tasks run out; 1 where neither is wanted."""


def fit_beta(tried: Sequence[Tried]) -> tuple[float, float]:
    """The beta distribution of pass rates that makes the pilot most likely.

    It is the prior of each task: under a uniform one a task solved at its only attempt would count as two thirds.
    """
    import numpy as np
    from scipy.special import betaln

    rates = np.linspace(0, 1, _RATES + 2)[1:-1, None, None]
    strengths = np.logspace(-1, 3, _STRENGTHS)[None, :, None]
    kinds = Counter((one.right, one.wrong) for one in tried)
    right, wrong = (np.array([pair[at] for pair in kinds]) for at in (0, 1))
    a, b = rates * strengths, (1 - rates) * strengths
    likelihood = ((betaln(a + right, b + wrong) - betaln(a, b)) * np.array(list(kinds.values()))).sum(axis=2)
    rate, strength = np.unravel_index(int(np.argmax(likelihood)), likelihood.shape)
    return float(a[rate, strength, 0]), float(b[rate, strength, 0])


def forecast_target(tried: Sequence[Tried], rule: Rule, tasks: int, stored: Sequence[int], seed: int) -> TargetForecast:
    """Play the rounds of a target over tasks like those of the pilot. `stored`: attempts in the ledger, by index.

    Each simulated task takes after one of the pilot, whose pass rate is drawn once a draw from its posterior: drawn for
    every simulated task anew, the doubt about it would average out, and the intervals held the truth in 75 % only.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    width = min(tasks, _SIMULATED_TASKS)
    a, b = fit_beta(tried)
    weights = _weights(rng, len(tried), 0, _SIMULATED_DRAWS)
    likes = np.stack([rng.choice(len(tried), width, p=row) for row in weights])
    right, wrong, cost = (np.array([getattr(one, name) for one in tried]) for name in ("right", "wrong", "tokens"))
    rates = np.take_along_axis(rng.beta(a + right, b + wrong, (len(likes), len(tried))), likes, axis=1)
    rounds, passed, tokens = _play(rng, rates, cost[likes], rule)
    each_tokens, each_passing = tokens.mean(axis=1), passed.mean(axis=1)
    used, reached = _tasks_needed(rule, tasks, each_passing, each_tokens)
    there = np.array(stored[: rule.tries]) / max(tasks, 1)
    asked = np.clip(rounds - there, 0, None).sum(axis=1) * used
    attempts = rounds.sum(axis=1)
    return TargetForecast(
        tasks=_estimate(used),
        attempts=_estimate(attempts * used),
        asked=_estimate(asked),
        asked_tokens=_estimate(asked * each_tokens / np.maximum(attempts, 1e-9)),
        passing=_estimate(each_passing * used),
        served=_estimate((passed >= rule.passing).mean(axis=1) * used),
        pass_rate=_estimate(rates.mean(axis=1)),
        reached=float(reached.mean()),
    )


def _play(rng: "np.random.Generator", rates: Any, cost: Any, rule: Rule) -> tuple[Any, Any, Any]:  # noqa: ANN401
    """(attempts a task in each round, passing samples by task, output tokens by task), each by draw."""
    import numpy as np

    passed, failed, tokens = (np.zeros(rates.shape) for _ in range(3))
    open_tasks = np.ones(rates.shape, dtype=bool)
    rounds = np.zeros((len(rates), rule.tries))
    for index in range(rule.tries):
        rounds[:, index] = open_tasks.mean(axis=1)
        success = rng.random(rates.shape) < rates
        passed += open_tasks & success
        failed += open_tasks & ~success
        tokens += open_tasks * cost
        open_tasks &= passed < rule.passing
        for right, wrong in rule.hopeless:
            open_tasks &= ~((passed == right) & (failed == wrong))
    return rounds, passed, tokens


def _tasks_needed(rule: Rule, tasks: int, passing: Any, tokens: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays
    """How many tasks are tried, and whether the wanted rows or tokens are reached with them, by draw."""
    import numpy as np

    needed = np.full(len(passing), float(tasks))
    reached = np.full(len(passing), rule.rows is None and rule.tokens is None)
    for wanted, each in ((rule.rows, passing), (rule.tokens, tokens)):
        if wanted is not None:
            enough = wanted / np.maximum(each, 1e-9)
            reached |= enough <= tasks
            needed = np.minimum(needed, enough)
    return needed, reached

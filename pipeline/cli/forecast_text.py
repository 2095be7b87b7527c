"""The forecast of `warmstart plan` as lines: the rest of the run, its time and cost, and what the whole set yields."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from pipeline.config import Machine
from pipeline.engine.forecast import Estimate, forecast_sum, forecast_target
from pipeline.engine.pilot import MeasuredSampler, Pilot, rule_of
from pipeline.engine.wanted import Wanted
from pipeline.records import Task


def fixed_lines(
    config: Wanted,
    tasks: Sequence[Task],
    samplers: Sequence[MeasuredSampler],
    own: Sequence[Sequence[Task]],
    pilot: Pilot,
    price: float | None,
    machine: Machine,
) -> Iterator[str]:
    """The forecast where each teacher makes a fixed number of attempts."""
    each, wanted = config.samples_per_task, 0
    bills = []
    for sampler, tasks_of_it in zip(samplers, own, strict=True):
        left = len(tasks_of_it) * each - sum(sampler.stored(tasks_of_it, range(each)))
        wanted += len(tasks_of_it) * each
        rows = [pairs for pairs in pilot.by_task(sampler.teacher.name).values() if pairs]
        yield f"\nstill to ask of {sampler.teacher.name} after the pilot: {left:,} samples"
        if not rows or not left:
            continue
        units = max(1, round(left / each))
        prompt, output = (
            forecast_sum(
                [each * sum(pilot.paid(sample)[kind] for sample, _ in pairs) / len(pairs) for pairs in rows],
                units,
                config.seed,
            ).times(left / units / each)
            for kind in (0, 1)
        )
        yield _line("prompt tokens", prompt)
        yield from _time_lines(output, sampler.tokens_per_s)
        bills.append(_gpu_hours(output, sampler.tokens_per_s, sampler.num_gpus))
    if len(bills) > 1 and None not in bills:
        yield "\nall teachers together:"
    yield from _bill_lines(bills, price, machine)
    others = len(tasks) - len(pilot.tasks)
    by_task = list(pilot.by_task().values())
    rights = [sum(right for _, right in pairs) for pairs in by_task]
    most = max(len(pairs) for pairs in by_task)
    passing = forecast_sum(rights, others, config.seed, (0, most)).plus(sum(rights))
    solved = [float(right > 0) for right in rights]
    some = forecast_sum(solved, others, config.seed, (0, 1)).plus(sum(solved))
    yield f"\nthe whole set, {len(tasks):,} tasks and {wanted:,} samples:"
    yield _line("pass rate", passing.times(100 / wanted), " %", 1)
    yield _line("passing samples", passing)
    yield _line("tasks with one", some)
    yield from _caveat()


def target_lines(
    config: Wanted,
    tasks: Sequence[Task],
    samplers: Sequence[MeasuredSampler],
    own: Sequence[Sequence[Task]],
    pilot: Pilot,
    price: float | None,
    machine: Machine,
) -> Iterator[str]:
    """The forecast where attempts are made until enough pass."""
    assert config.target is not None
    indices = range(config.target.tries)
    by_teacher = [sampler.stored(tasks_of_it, indices) for sampler, tasks_of_it in zip(samplers, own, strict=True)]
    stored = [sum(counts) for counts in zip(*by_teacher, strict=True)]
    found = forecast_target(pilot.tried(), rule_of(config.target), len(tasks), stored, config.seed)
    yield f"\nuntil {_wish(config)}:"
    yield _line("tasks tried", found.tasks)
    yield _line("attempts", found.attempts)
    yield _line("pass rate", found.pass_rate.times(100), " %", 1) + " of one attempt"
    yield _line("passing samples", found.passing)
    yield _line("tasks with enough", found.served)
    if found.reached < 1:
        yield f"  the tasks run out before that with a probability of {1 - found.reached:.0%}"
    yield "\nstill to ask after the pilot:"
    yield _line("attempts", found.asked)
    prompt = sum(pilot.paid(sample)[0] for sample in pilot.samples) / len(pilot.samples)
    yield _line("prompt tokens", found.asked.times(prompt))
    rate = _joint_rate(samplers, pilot)
    yield from _time_lines(found.asked_tokens, rate)
    yield from _bill_lines([_gpu_hours(found.asked_tokens, rate, max(s.num_gpus for s in samplers))], price, machine)
    yield from _caveat()


def _joint_rate(samplers: Sequence[MeasuredSampler], pilot: Pilot) -> float | None:
    """Output tokens a second where each teacher makes its share of the pilot's tokens at its own speed."""
    made: Counter[str] = Counter()
    for sample in pilot.samples:
        made[sample.teacher] += pilot.paid(sample)[1]
    seconds = 0.0
    for sampler in samplers:
        tokens, rate = made[sampler.teacher.name], sampler.tokens_per_s
        if tokens and rate is None:
            return None
        seconds += tokens / rate if rate else 0.0
    return made.total() / seconds if seconds else None


def _wish(config: Wanted) -> str:
    assert config.target is not None
    target = config.target
    ends = [f"{target.rows:,} samples pass"] if target.rows else []
    ends += [f"{target.tokens:,} output tokens are there"] if target.tokens else []
    each = f"each task has {target.passing} passing or {target.tries} attempts"
    return " or ".join(ends) + f" ({each})" if ends else each


def _time_lines(output: Estimate, rate: float | None) -> Iterator[str]:
    """Output tokens, and how long they take at the measured rate."""
    yield _line("output tokens", output)
    if rate is None:
        yield "  wall time          not known: the speed was not measured"
        return
    hours = output.mean / rate / 3600
    unit, seconds = (" h", 3600) if hours >= 2 else (" min", 60) if hours >= 1 / 30 else (" s", 1)
    yield _line("wall time", output.times(1 / rate / seconds), unit, 1)


def _gpu_hours(output: Estimate, rate: float | None, gpus: int) -> Estimate | None:
    return None if rate is None else output.times(gpus / rate / 3600)


def _bill_lines(bills: Sequence[Estimate | None], price: float | None, machine: Machine) -> Iterator[str]:
    """GPU-hours of all teachers, and their cost; the ends of the intervals are summed, which makes them wide."""
    known = [bill for bill in bills if bill is not None]
    if not known or len(known) < len(bills):
        return
    total = known[0]
    for bill in known[1:]:
        total = replace(total, low=total.low + bill.low, mean=total.mean + bill.mean, high=total.high + bill.high)
    yield _line("GPU-hours" if machine.serving.device == "cuda" else "server-hours", total, "", 2)
    if price is not None:
        yield _line("cost", total.times(price), " EUR", 2) + f" at {price:g} an hour"


def _line(name: str, found: Estimate, unit: str = "", digits: int = 0) -> str:
    low, mean, high = (f"{value:,.{digits}f}" for value in (found.low, found.mean, found.high))
    return f"  {name:<18} {mean}{unit} ({low} to {high})"


def _caveat() -> Iterator[str]:
    yield (
        "\nIn brackets: 90 % intervals, from the spread between the pilot's tasks. Times hold for the machine and the\n"
        "load of the pilot: loading the model is left out, and a long run keeps the servers fuller than a pilot does."
    )

"""Let teacher models solve each training task several times.

in:   tasks    output of the stage tasks
      teacher  model folder of a teacher that is served from files
out:  samples/ one row a task, teacher and index, in task order
      generation.json  models, settings and versions that made them

Every finished answer is in the ledger before it is counted, so a killed or repeated run pays only for what is
missing, and raising `samples_per_task` costs only the new ones. Law: requested = sum over outcomes + lost + left_out.

With `target`, attempts are made in rounds and verified in between: a task that has its passing samples, or hardly
ever will, is asked no more. What is stored depends on verdicts and task order alone, never on who answered first.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import islice
from pathlib import Path

from pipeline.config import Machine, load_machine
from pipeline.engine import Sampler, Teacher
from pipeline.engine.manifest import generation_manifest
from pipeline.engine.rounds import collect_set, run_rounds
from pipeline.engine.wanted import Wanted
from pipeline.errors import UserError
from pipeline.ledger import Ledger
from pipeline.records import Report, Sample, Task
from pipeline.shards import iter_columns, iter_table, write_json, write_table
from pipeline.verdicts import Judge
from pipeline.work import progress_folder

INPUTS = {"tasks": "output of the stage tasks"}
OPTIONAL_INPUTS = {"teacher": "model folder of a teacher that is served from files"}

_BLOCK = 500  # tasks assembled at a time
_PASSES = 3  # a pass after the first asks for stored answers that turned out to be damaged


class Config(Wanted):
    """What is asked of which models."""


def tasks_for(teacher: Teacher, tasks: Iterable[Task]) -> Iterator[Task]:
    """The tasks that a teacher is asked."""
    return (task for task in tasks if teacher.takes(task.domain))


def samples_in_order(tasks: Iterable[Task], samplers: Sequence[Sampler], indices: Sequence[int]) -> Iterator[Sample]:
    """All samples by task, then teacher, then index."""
    tasks = iter(tasks)
    while block := list(islice(tasks, _BLOCK)):
        by_task: dict[str, list[Sample]] = {}
        for sampler in samplers:
            for sample in sampler.collect(sampler.requests(tasks_for(sampler.teacher, block), indices)):
                by_task.setdefault(sample.task_id, []).append(sample)
        for task in block:
            yield from by_task.get(task.task_id, ())


def count_outcomes(samples: Iterable[Sample], counts: Counter[str]) -> Iterator[Sample]:
    """Pass samples through, counting outcomes and tokens."""
    for sample in samples:
        counts["samples"] += 1
        counts[sample.outcome] += 1
        counts["prompt_tokens"] += sample.num_prompt_tokens
        counts["output_tokens"] += sample.num_output_tokens
        yield sample


def ask_fixed(
    config: Config,
    tasks: Callable[[], Iterable[Task]],
    domains: Mapping[str, int],
    samplers: Sequence[Sampler],
    output: Path,
) -> Counter[str]:
    """`samples_per_task` of every teacher; writes the samples and counts them."""
    indices = range(config.samples_per_task)
    for number in range(_PASSES):
        for sampler in samplers:
            ask_one(sampler, tasks, domains, indices, again=number > 0)
        counts: Counter[str] = Counter()
        write_table(output, Sample, count_outcomes(samples_in_order(tasks(), samplers, indices), counts))
        if not any(sampler.damaged for sampler in samplers):
            break
    return counts


def _own(sampler: Sampler, tasks: Callable[[], Iterable[Task]]) -> Iterator[Task]:
    return tasks_for(sampler.teacher, tasks())


def ask_one(
    sampler: Sampler,
    tasks: Callable[[], Iterable[Task]],
    domains: Mapping[str, int],
    indices: Sequence[int],
    again: bool,
) -> None:
    """One teacher's answers to all its tasks. `domains` counts the tasks of each; `again` asks for damaged ones."""
    count = sum(domains.get(domain, 0) for domain in sampler.teacher.domains or domains)
    own = partial(_own, sampler, tasks)
    sampler.explain_change(own, indices)
    with sampler:
        sampler.ask(lambda: sampler.requests(own(), indices), count * len(indices), again)


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Ask for what the ledger lacks, then write all samples in task order."""
    machine, folder = load_machine(), progress_folder(output)

    def tasks() -> Iterator[Task]:
        chosen = (task for task in iter_table(inputs["tasks"], Task) if task.split == "train")
        return islice(chosen, config.limit)

    columns = iter_columns(inputs["tasks"], Task, ["split", "domain"])
    domains = Counter(islice((domain for split, domain in columns if split == "train"), config.limit))
    with Ledger(machine.ledger) as ledger:
        samplers = [
            Sampler(teacher, inputs.get("teacher"), config.seed, machine, ledger, folder, config.budget)
            for teacher in config.teachers
        ]
        extra: Report = {}
        if config.target is None:
            counts = ask_fixed(config, tasks, domains, samplers, output)
        else:
            counts, extra = ask_until(config, tasks, samplers, output, machine)
    write_json(output / "generation.json", generation_manifest(samplers))
    report = summarise(domains.total(), samplers, counts) | extra
    check_lost(config, samplers)
    return report


def ask_until(
    config: Config,
    tasks: Callable[[], Iterable[Task]],
    samplers: Sequence[Sampler],
    output: Path,
    machine: Machine,
) -> tuple[Counter[str], Report]:
    """Rounds until the target is met; writes the samples and counts them."""
    assert config.target is not None
    counts: Counter[str] = Counter()
    with Judge(config.limits, machine) as judge, ExitStack() as servers:
        for sampler in samplers:
            sampler.explain_change(partial(_own, sampler, tasks), range(config.target.tries))
            servers.enter_context(sampler)
        found = run_rounds(tasks, samplers, config.target, judge.passes)
        write_table(output, Sample, count_outcomes(collect_set(found, tasks(), samplers), counts))
    return counts, found.report()


def summarise(tasks: int, samplers: Sequence[Sampler], counts: Counter[str]) -> Report:
    """Flat numbers of the run; with several teachers also by teacher."""
    total: Counter[str] = Counter()
    for sampler in samplers:
        for name in ("requested", "reused", "requests_sent", "received_tokens", "lost", "server_restarts"):
            total[name] += getattr(sampler.counts, name)
        total["server_requests"] += sampler.counts.server_requests
        total["server_generated_tokens"] += sampler.counts.server_generated_tokens
    report: Report = {"tasks": tasks, "requested": total.pop("requested"), **dict(sorted(counts.items()))}
    report["left_out"] = int(report["requested"]) - counts["samples"] - total["lost"]
    report |= dict(total)
    report["output_tokens_per_s"] = max((s.counts.output_tokens_per_s for s in samplers), default=0.0)
    report["budget_reached"] = any(sampler.budget_reached for sampler in samplers)
    if len(samplers) > 1:
        for sampler in samplers:
            report[f"requests_sent_{sampler.teacher.name}"] = sampler.counts.requests_sent
    return report


def check_lost(config: Config, samplers: Sequence[Sampler]) -> None:
    """Raise UserError when too many requests were refused or given up; the ledger keeps all others."""
    lost = [why for sampler in samplers for why in sampler.lost.values()]
    asked = sum(sampler.counts.requested for sampler in samplers)
    if len(lost) > config.max_lost * asked:
        examples = "\n".join(f"  {why}" for why in lost[:3])
        raise UserError(
            f"{len(lost)} of {asked} samples could not be had, more than max_lost: {config.max_lost} allows; all "
            f"others are kept, the same command asks for these again. The first:\n{examples}"
        )

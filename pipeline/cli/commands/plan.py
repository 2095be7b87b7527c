"""Say what a `generate` run will cost and yield before it is paid for, from a pilot of a few tasks.

The pilot's tasks, spread over all domains, are asked and verified as `warmstart generate` would. Their answers go to
the ledger, so the run itself does not pay for them again. From them follows a forecast for the whole set (tokens,
time, GPU-hours, cost, passing samples), with intervals that hold the truth about nine times in ten. It holds for the
servers, the machine and the load of the pilot; a longer run keeps the servers fuller than a pilot does.

--pilot 0 asks nobody and starts no server: it counts what is wanted, what the ledger holds already, and says which
setting changed if stored samples no longer fit.

    warmstart plan --config configs/demo/generate.yaml --in tasks=data/demo/tasks --in teacher=data/demo/base --pilot 0
    warmstart plan --config configs/demo/generate.yaml --in tasks=data/demo/tasks --in teacher=data/demo/base \\
        --pilot 64 --price 2.50
    warmstart plan ... --set samples_per_task=16
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.inputs import read_inputs
from pipeline.cli.text import escaped
from pipeline.errors import UserError

if TYPE_CHECKING:
    from pipeline.config import Machine
    from pipeline.engine.pilot import MeasuredSampler, Pilot
    from pipeline.engine.wanted import Wanted
    from pipeline.records import Task

FEW = 10
"""A pilot of fewer tasks gives intervals that are too narrow."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What will be asked, how large the pilot is, and what an hour costs."""
    parser.add_argument("--config", metavar="FILE", type=Path, required=True, help="the recipe's generate.yaml")
    parser.add_argument(
        "--in",
        dest="inputs",
        metavar="NAME=PATH",
        action="append",
        default=[],
        help="tasks=PATH; teacher=PATH for a teacher that is served from files",
    )
    parser.add_argument(
        "--pilot", metavar="N", type=int, default=32, help="tasks of the pilot (default 32), 0 for none"
    )
    parser.add_argument("--price", metavar="EUR", type=float, help="price of a GPU-hour, for the cost")
    parser.add_argument(
        "--set", dest="overrides", metavar="KEY=VALUE", action="append", default=[], help="override a config key"
    )


def run(arguments: argparse.Namespace) -> int:
    """Count, ask the pilot, and print the forecast. Raises UserError for wrong inputs."""
    if arguments.pilot < 0:
        raise UserError(f"--pilot {arguments.pilot}: give a number of tasks, or 0 to ask nobody")
    if arguments.price is not None and not arguments.price >= 0:
        raise UserError(f"--price {arguments.price}: give the price of a GPU-hour, 0 or more")
    from pipeline.cli.forecast_text import fixed_lines, target_lines
    from pipeline.config import load_config, load_machine
    from pipeline.engine.pilot import MeasuredSampler, run_pilot
    from pipeline.engine.wanted import Wanted, asked_of, training_tasks
    from pipeline.ledger import Ledger

    inputs = read_inputs(arguments.inputs, ("tasks",), ("teacher",))
    config, machine = load_config(Wanted, arguments.config, arguments.overrides), load_machine()
    tasks = training_tasks(inputs["tasks"], config.limit)
    if not tasks:
        raise UserError(f"{inputs['tasks']}: holds no training task, so generate will ask for nothing")
    with ExitStack() as held:
        # A reader needs neither the lock nor a ledger that exists; without an index only a writer can look.
        write = arguments.pilot > 0 or not (machine.ledger / "index.sqlite").is_file()
        work = held.enter_context(_work()) if arguments.pilot else Path()
        ledger = held.enter_context(Ledger(machine.ledger, write=write))
        samplers = [
            MeasuredSampler(teacher, inputs.get("teacher"), config.seed, machine, ledger, work, config.budget)
            for teacher in config.teachers
        ]
        own = [o for _, o in asked_of(config.teachers, tasks, first_only=config.target is not None)]
        print(f"{arguments.config}: {len(tasks):,} training tasks ({_counted(Counter(t.domain for t in tasks))})")
        print(f"\nexact, by what the ledger {machine.ledger} holds:")
        _print_exact(config, samplers, own)
        if arguments.pilot:
            pilot = run_pilot(config, tasks, samplers, arguments.pilot, machine)
            for line in _pilot_lines(pilot, samplers):
                print(line)
            lines = fixed_lines if config.target is None else target_lines
            for line in lines(config, tasks, samplers, own, pilot, arguments.price, machine):
                print(line)
    return 0


@contextmanager
def _work() -> Iterator[Path]:
    """The folder .work/plan under its lock, and the guard that ends what the pilot starts."""
    from pipeline.work import FINGERPRINTS, Guard, one_writer
    from pipeline.work.guard import reap_leftovers

    folder = FINGERPRINTS.with_name("plan")
    folder.mkdir(parents=True, exist_ok=True)
    with one_writer(folder, "`plan` is being run"):
        reap_leftovers(folder / "processes.json")
        with Guard(folder / "processes.json"):
            yield folder


def _print_exact(config: "Wanted", samplers: "Sequence[MeasuredSampler]", own: "Sequence[Sequence[Task]]") -> None:
    """What is wanted, and what the ledger holds of it."""
    indices = range(config.tries)
    for sampler, tasks in zip(samplers, own, strict=True):
        sampler.explain_change(partial(iter, tasks), indices)
        if not tasks:
            print(f"  {sampler.teacher.name}: no task is asked of it")
            continue
        wanted, stored = len(tasks) * len(indices), sum(sampler.stored(tasks, indices))
        most = "" if config.target is None else "at most "
        print(
            f"  {sampler.teacher.name}: {len(tasks):,} tasks x {most}{len(indices)} = {most}{wanted:,} samples, "
            f"{stored:,} in the ledger, {most}{wanted - stored:,} to ask"
        )


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{number:,} {name}" for name, number in counts.most_common())


def _pilot_lines(pilot: "Pilot", samplers: "Sequence[MeasuredSampler]") -> Iterator[str]:
    """What the pilot gave, and what spoils it."""
    outcomes = Counter(sample.outcome for sample in pilot.samples)
    yield (
        f"\npilot: {len(pilot.tasks):,} tasks ({_counted(Counter(task.domain for task in pilot.tasks))}), "
        f"{len(pilot.samples):,} samples ({_counted(outcomes)}), {sum(pilot.passed):,} pass"
    )
    for sampler in samplers:
        if sampler.counts.requested == 0:
            continue
        rate = sampler.tokens_per_s
        if rate is None:
            said = "speed not measured (the ledger held the others); a larger --pilot asks new tasks"
        else:
            said = f"{rate:,.0f} output tokens/s on {sampler.num_gpus} {_gpus(sampler.machine)}"
        yield f"  {sampler.teacher.name}: {sampler.counts.requests_sent:,} asked for; {said}"
        if sampler.lost:
            first = next(iter(sampler.lost.values()))
            yield f"  {sampler.teacher.name}: {len(sampler.lost):,} lost, the first: {escaped(first)}"
        if sampler.budget_reached:
            yield f"  {sampler.teacher.name}: the budget of the config was reached; the pilot is smaller than wanted"
    if len(pilot.tasks) < FEW:
        yield f"  a pilot of fewer than {FEW} tasks says little, and its intervals are too narrow"


def _gpus(machine: "Machine") -> str:
    return "GPU(s)" if machine.serving.device == "cuda" else "server(s) without GPU"

"""Let a teacher model solve each training task several times.

In: tasks, and the teacher's model folder unless it is served elsewhere. Out: `samples/`, one row per task and index.
Every finished answer is in the ledger before it is counted, so a killed or repeated run pays only for what is
missing, and raising `samples_per_task` costs only the new ones. Law: requested = sum over outcomes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path

from pydantic import Field

from pipeline.config import StageConfig, load_machine
from pipeline.engine import Ledger, Teacher, collect_samples, make_requests, sample_missing
from pipeline.engine.sampling import model_identity
from pipeline.records import Report, Sample, Task
from pipeline.shards import iter_table, write_table
from pipeline.work import FINGERPRINTS, progress_folder

INPUTS = {"tasks": "output of the stage tasks"}
OPTIONAL_INPUTS = {"teacher": "model folder that a local engine serves"}


class Config(StageConfig):
    """What is asked of which model."""

    teacher: Teacher
    """The model that solves the tasks."""
    samples_per_task: int = Field(4, ge=1)
    """Attempts at each task."""


def count_outcomes(samples: Iterable[Sample], counts: Counter[str]) -> Iterator[Sample]:
    """Pass samples through, counting outcomes and tokens."""
    for sample in samples:
        counts[sample.outcome] += 1
        counts["prompt_tokens"] += sample.num_prompt_tokens
        counts["output_tokens"] += sample.num_output_tokens
        yield sample


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Ask for what the ledger lacks, then write all samples in task order."""
    machine, model = load_machine(), inputs.get("teacher")
    tasks = (task for task in iter_table(inputs["tasks"], Task) if task.split == "train")
    identity = model_identity(config.teacher, model, FINGERPRINTS)
    chosen = islice(tasks, config.limit)
    requests = list(make_requests(chosen, config.teacher, identity, config.seed, config.samples_per_task))
    with Ledger(machine.ledger) as ledger:
        done = sample_missing(requests, config.teacher, model, machine, ledger, progress_folder(output) / "vllm.log")
        counts: Counter[str] = Counter()
        write_table(output, Sample, count_outcomes(collect_samples(requests, config.teacher, model, ledger), counts))
    return {
        "tasks": len({request.task.task_id for request in requests}),
        "requested": done.requested,
        **dict(sorted(counts.items())),
        "reused": done.reused,
        "requests_sent": done.requests_sent,
        "received_tokens": done.received_tokens,
        "output_tokens_per_s": done.output_tokens_per_s,
        "server_requests": done.server_requests,
        "server_generated_tokens": done.server_generated_tokens,
    }

"""Answers out of finished samples: a ledger that was lost is made again from the output of `generate`.

A sample carries everything of its answer but the ledger key, and the key follows from its task, index and the config.
The seed of a request is drawn from its key, so a sample whose seed is not that of the request has another key: it was
made with other key fields, and is left out.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pipeline.engine.requests import key_fields, make_requests, model_folder
from pipeline.engine.settings import Teacher
from pipeline.engine.wanted import Wanted
from pipeline.ledger import CUT, Answer, Ledger
from pipeline.progress import Progress
from pipeline.records import Sample, Task
from pipeline.work import FINGERPRINTS

_BLOCK = 2_000  # samples looked up, and put, together

LEFT_OUT = {
    "other_seed": "were made with other key fields (their seed is not the one that follows from this config)",
    "other_teacher": "are of a teacher that the config does not name",
    "no_task": "belong to a task that is not among the tasks",
    "no_raw_text": "hold no raw answer with its token limit in `turns`",
}
"""Why samples are left out."""


@dataclass(slots=True)
class Imported:
    """What became of the samples."""

    samples: int = 0
    imported: int = 0
    known: int = 0
    """In the ledger already."""
    second_limit: int = 0
    """Asked with `max_tokens_if_cut`: the answer that was cut before them is in no sample."""
    left_out: Counter[str] = field(default_factory=Counter)
    """By `LEFT_OUT`."""
    seeds_by_teacher: Counter[str] = field(default_factory=Counter)
    """Samples with another seed."""


def import_samples(
    config: Wanted, tasks: Mapping[str, Task], samples: Iterable[Sample], model: Path | None, ledger: Ledger, total: int
) -> Imported:
    """Put what the ledger lacks. `tasks` by task_id; `model` is the folder given with --in teacher."""
    teachers = {teacher.name: teacher for teacher in config.teachers}
    fields = {
        name: key_fields(teacher, model_folder(teacher, model), FINGERPRINTS, config.seed)
        for name, teacher in teachers.items()
    }
    found, samples = Imported(), iter(samples)
    with Progress("import", total, "samples") as progress:
        while block := list(islice(samples, _BLOCK)):
            found.samples += len(block)
            for name in dict.fromkeys(sample.teacher for sample in block):
                own = [sample for sample in block if sample.teacher == name]
                if name not in teachers:
                    found.left_out["other_teacher"] += len(own)
                    continue
                pairs = _answers(own, tasks, teachers[name], fields[name], found)
                _put(ledger, {"teacher": name, **fields[name]}, pairs, found)
            progress.advance(len(block), f"{found.imported} imported")
    return found


def _answers(
    samples: Sequence[Sample], tasks: Mapping[str, Task], teacher: Teacher, fields: Mapping[str, Any], found: Imported
) -> list[tuple[bytes, Answer]]:
    """Keys and answers of those samples that this teacher would give."""
    pairs = []
    for sample in samples:
        task = tasks.get(sample.task_id)
        if task is None:
            found.left_out["no_task"] += 1
            continue
        request = next(make_requests([task], fields, [sample.index]))
        answer = answer_of(sample)
        if request.seed != sample.seed:
            found.left_out["other_seed"] += 1
            found.seeds_by_teacher[teacher.name] += 1
        elif answer is None:
            found.left_out["no_raw_text"] += 1
        else:
            found.second_limit += is_after_a_cut(answer, teacher)
            pairs.append((request.key, answer))
    return pairs


def is_after_a_cut(answer: Answer, teacher: Teacher) -> bool:
    """Whether the answer is of the second token limit, which is asked only once the first one has cut."""
    first = teacher.limits[0]
    fits_first = answer.num_output_tokens <= first and answer.finish_reason != CUT
    return len(teacher.limits) > 1 and answer.max_tokens != first and not fits_first


def answer_of(sample: Sample) -> Answer | None:
    """What the server answered, None where the sample does not hold it in one piece."""
    turns = json.loads(sample.turns)
    if len(turns) != 1 or not {"text", "finish_reason", "max_tokens"} <= turns[0].keys():
        return None
    turn = turns[0]
    return Answer(
        text=turn["text"],
        finish_reason=turn["finish_reason"],
        reasoning=turn.get("reasoning"),
        num_prompt_tokens=sample.num_prompt_tokens,
        num_output_tokens=sample.num_output_tokens,
        max_tokens=turn["max_tokens"],
        seed=sample.seed,
        tool_calls=turn.get("tool_calls"),
        token_ids=turn.get("token_ids"),
    )


def _put(ledger: Ledger, fields: Mapping[str, Any], pairs: Sequence[tuple[bytes, Answer]], found: Imported) -> None:
    """Store what is not there yet: a stored answer stays, so that importing twice adds nothing."""
    stored = ledger.find([key for key, _ in pairs])
    new = {
        (key, answer.max_tokens): (key, answer)
        for key, answer in pairs
        if all(one.max_tokens != answer.max_tokens for one in stored.get(key, ()))
    }
    found.known += len(pairs) - len(new)
    found.imported += len(new)
    if new:
        ledger.declare(fields)
        ledger.put(new.values())

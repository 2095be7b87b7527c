"""Tasks for a server whose answers are made up."""

from pipeline.records import Task, canonical_json, content_id, prompt_id_of


def sum_task(number: int, split: str = "train", domain: str = "math") -> Task:
    """A sum to solve, judged by the verifier math."""
    messages = [{"role": "user", "content": f"What is {number} + {number}?"}]
    reference = canonical_json({"answer": str(2 * number)})
    return Task(
        task_id=content_id(messages, reference),
        prompt_id=prompt_id_of(messages),
        source="sums",
        source_id=str(number),
        source_revision=None,
        license="CC0-1.0",
        domain=domain,
        messages=canonical_json(messages),
        tools=None,
        verifier="math",
        reference=reference,
        split=split,
    )

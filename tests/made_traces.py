"""Traces made for tests."""

from pipeline.records import Trace, canonical_json, content_id, prompt_id_of


def trace(question, answer, *, split="train", domain="math", messages=None):
    """A verified one-turn trace; `messages` replaces the turns."""
    messages = messages or [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return Trace(
        trace_id=content_id(messages),
        task_id=content_id("task", question),
        prompt_id=prompt_id_of(messages[:1]),
        source="made",
        source_id=question,
        license="Apache-2.0",
        domain=domain,
        split=split,
        messages=canonical_json(messages),
        tools=None,
        teacher="t",
        verdict="pass",
        score=1.0,
        pass_rate=0.5,
        num_samples=4,
        num_output_tokens=10,
    )

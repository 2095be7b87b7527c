"""The record of an answer, made by our parser from the raw text that the ledger keeps."""

import json
from collections.abc import Iterable
from typing import Any

from pipeline.chat.parse import parse_turn
from pipeline.engine.requests import Request
from pipeline.engine.settings import Teacher
from pipeline.ledger import Answer
from pipeline.records import Sample, canonical_json, content_id


def sample_of(request: Request, answer: Answer, teacher: Teacher, markers: Iterable[str]) -> Sample:
    """The record of an answer: raw text in `turns`, what our parser makes of it in `messages` and `outcome`."""
    messages, outcome = parse_turn(
        answer.text,
        answer.finish_reason,
        reasoning=answer.reasoning,
        thinking=teacher.thinking,
        markers=tuple(markers),
        call_format=teacher.call_format,
        tools=None if request.task.tools is None else json.loads(request.task.tools),
        tool_calls=answer.tool_calls,
    )
    turn: dict[str, Any] = {"text": answer.text, "finish_reason": answer.finish_reason, "max_tokens": answer.max_tokens}
    for name in ("reasoning", "tool_calls", "token_ids"):
        if getattr(answer, name) is not None:
            turn[name] = getattr(answer, name)
    return Sample(
        sample_id=content_id("sample", request.task.task_id, request.key.hex(), answer.text),
        task_id=request.task.task_id,
        index=request.index,
        teacher=teacher.name,
        turns=canonical_json([turn]),
        messages=canonical_json(messages),
        outcome=outcome,
        num_prompt_tokens=answer.num_prompt_tokens,
        num_output_tokens=answer.num_output_tokens,
        seed=answer.seed,
    )

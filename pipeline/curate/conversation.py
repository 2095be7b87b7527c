"""The texts of a trace that curation looks at."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from pipeline.records import canonical_json


def said_by(messages: Iterable[Mapping[str, Any]], *roles: str) -> str:
    """Everything that the given roles say: content, thinking and tool calls."""
    parts: list[str] = []
    for message in messages:
        if message.get("role") not in roles:
            continue
        parts.extend(str(message[key]) for key in ("reasoning_content", "content") if message.get(key))
        if message.get("tool_calls"):
            parts.append(canonical_json(message["tool_calls"]))
    return "\n".join(parts)


def question_of(messages: str) -> str:
    """What the user asks. System text and tool schemas are shared by unlike prompts and stay out."""
    return said_by(json.loads(messages), "user")


def answer_of(messages: str) -> str:
    """What the assistant says."""
    return said_by(json.loads(messages), "assistant")

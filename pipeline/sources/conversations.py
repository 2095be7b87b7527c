"""Conversations in the formats of the field, brought into one form or refused with a reason, never repaired."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from pipeline.chat.mask import find_problem
from pipeline.chat.parse import parse_turn
from pipeline.sources.fields import without_nulls

SHAREGPT_ROLES: Mapping[str, str] = {
    "system": "system",
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "assistant": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "tool": "tool",
    "function_response": "tool",
}
"""Names of speakers in ShareGPT sets to roles."""


class BadConversation(Exception):
    """Why a row is no conversation to train on."""

    def __init__(self, reason: str, **evidence: object) -> None:
        super().__init__(reason)
        self.reason, self.evidence = reason, evidence


class Function(BaseModel):
    """What a tool call calls."""

    model_config = ConfigDict(strict=True, extra="forbid")
    name: str = Field(pattern=r"\S")
    arguments: dict[str, Any]


class Call(BaseModel):
    """A tool call."""

    model_config = ConfigDict(strict=True, extra="forbid")
    id: str | None = None
    type: Literal["function"] = "function"
    function: Function


class Said(BaseModel):
    """One message of a conversation."""

    model_config = ConfigDict(strict=True, extra="forbid")
    role: Literal["system", "user", "assistant", "tool"]
    content: str
    reasoning_content: str | None = None
    tool_calls: list[Call] | None = None
    tool_call_id: str | None = None
    name: str | None = None


def read_conversation(fields: Mapping[str, Any], form: str) -> list[dict[str, Any]]:
    """The messages of a row in our form. Raises BadConversation, or ValidationError for a message of another shape."""
    turns = TURNS[form](fields)
    if not isinstance(turns, list) or not turns:
        raise BadConversation("missing_field", field=form)
    messages = [Said.model_validate(_normalise(turn)).model_dump(exclude_none=True) for turn in turns]
    if fields.get("system"):
        if messages[0]["role"] == "system":
            raise BadConversation("two_systems", field="system")
        messages.insert(0, {"role": "system", "content": str(fields["system"])})
    problem = find_problem(messages, ())
    if problem is not None:
        raise BadConversation(problem.reason, **problem.evidence)
    for turn, message in enumerate(messages):
        if not message["content"].strip() and not message.get("tool_calls"):
            raise BadConversation("empty_content", turn=turn, role=message["role"])
    return messages


def _of_messages(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    return fields.get("messages")


def _of_prompt_completion(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    parts: list[Any] = []
    for name, role in (("prompt", "user"), ("completion", "assistant")):
        value = fields.get(name)
        if value is None:
            raise BadConversation("missing_field", field=name)
        parts += value if isinstance(value, list) else [{"role": role, "content": value}]
    return parts


def _of_sharegpt(fields: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    turns = fields.get("conversations")
    if not isinstance(turns, list):
        return None
    messages = []
    for turn in without_nulls(turns):
        if not isinstance(turn, dict) or set(turn) != {"from", "value"} or turn["from"] not in SHAREGPT_ROLES:
            raise BadConversation(
                "bad_turn", rule=f"{{from, value}} of {', '.join(SHAREGPT_ROLES)}", found=ascii(turn)[:200]
            )
        if turn["from"] == "function_call":
            call = {"function": _parsed(turn["value"])}
            messages.append({"role": "assistant", "content": "", "tool_calls": [call]})
        else:
            messages.append({"role": SHAREGPT_ROLES[turn["from"]], "content": turn["value"]})
    return messages


TURNS = {"messages": _of_messages, "prompt_completion": _of_prompt_completion, "sharegpt": _of_sharegpt}


def _normalise(turn: Any) -> Any:  # noqa: ANN401 - any JSON value
    """One message with its known variants brought into one form; anything else is left for the model to refuse."""
    if not isinstance(turn, dict):
        return turn
    message = {key: value for key, value in turn.items() if value is not None}
    if "reasoning" in message and "reasoning_content" not in message:
        message["reasoning_content"] = message.pop("reasoning")
    content = message.get("content")
    if isinstance(content, list) and all(_is_text_part(part) for part in content):
        message["content"] = content = "".join(part["text"] for part in content)
    if message.get("tool_calls") == []:
        del message["tool_calls"]
    if isinstance(message.get("tool_calls"), list):
        message.setdefault("content", "")
        message["tool_calls"] = [_normalise_call(call) for call in message["tool_calls"]]
    if message.get("role") == "assistant" and isinstance(content, str) and content.lstrip().startswith("<think>"):
        if "</think>" not in content or "reasoning_content" in message:
            raise BadConversation("bad_thinking", found=ascii(content)[:200])
        message.update(parse_turn(content, "stop")[0][0])
    return message


def _is_text_part(part: Any) -> bool:  # noqa: ANN401 - any JSON value
    return isinstance(part, dict) and part.get("type") == "text" and isinstance(part.get("text"), str)


def _normalise_call(call: Any) -> Any:  # noqa: ANN401 - any JSON value
    """A tool call with `function` nested and its arguments as an object."""
    if not isinstance(call, dict):
        return call
    call = {key: value for key, value in call.items() if value is not None}
    if "function" not in call and "name" in call:
        call = {
            **{key: call[key] for key in ("id",) if key in call},
            "function": {k: v for k, v in call.items() if k != "id"},
        }
    if isinstance(call.get("function"), dict):
        call["function"] = {**call["function"], "arguments": _parsed(call["function"].get("arguments", {}))}
    return call


def _parsed(value: Any) -> Any:  # noqa: ANN401 - any JSON value
    """JSON text as its value; other text stays, to be refused where an object is needed."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value) if value.strip() else {}
    except (ValueError, RecursionError):
        return value

"""Split a model's raw text into thinking and answer, and say how the attempt ended."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

PARSER_VERSION = "1"


def parse_turn(
    text: str, finish_reason: str, *, reasoning: str | None = None, thinking: bool = False, markers: Sequence[str] = ()
) -> tuple[list[dict[str, Any]], str]:
    """Return (assistant messages, outcome) of one model turn.

    `markers` are the tokenizer's special tokens; one at the very end is the stop marker and is dropped. Thinking is
    what stands before the first `</think>`, whether or not the template prefilled the opener. `reasoning` is thinking
    that a server split off. An output cut by the token limit is never an answer.
    """
    if finish_reason == "prompt_too_long":
        return [], "prompt_too_long"
    body = _without_stop_marker(text, markers)
    thought = reasoning
    if thought is None and "</think>" in body:
        before, body = body.split("</think>", 1)
        thought = before.replace("<think>", "", 1)
    message = {"role": "assistant", "content": body.strip()}
    if thought is not None and thought.strip():
        message["reasoning_content"] = thought.strip()
    return [message], _outcome(body, finish_reason, thought, thinking)


def _outcome(body: str, finish_reason: str, thought: str | None, thinking: bool) -> str:
    opened = body.lstrip().startswith("<think>")
    if finish_reason == "length":
        still_thinking = opened or (thinking and thought is None) or (thought is not None and not body.strip())
        return "cut_in_thinking" if still_thinking else "cut_in_answer"
    if not body.strip():
        return "no_answer"
    if opened or (thinking and thought is None):
        return "no_thinking"
    return "complete"


def _without_stop_marker(text: str, markers: Sequence[str]) -> str:
    for marker in markers:
        if text.endswith(marker):
            return text[: -len(marker)]
    return text


def special_tokens(model: Path) -> tuple[str, ...]:
    """The special tokens of a model folder, longest first, read from tokenizer.json without loading a tokenizer."""
    file = model / "tokenizer.json"
    if not file.exists():
        return ()
    added = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", [])
    return tuple(sorted((t["content"] for t in added if t.get("special")), key=lambda t: (-len(t), t)))

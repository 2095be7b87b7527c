"""Split a model's raw text into thinking, answer and tool calls, and say how the attempt ended."""

import itertools
import json
import re
from collections import deque
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.calls import (
    CLOSE,
    OPEN,
    Call,
    MalformedCall,
    begins_with_call,
    is_quoted,
    normalise_calls,
    read_calls,
)

PARSER_VERSION = "2"

THINK, UNTHINK = "<think>", "</think>"
_STRUCTURE = (THINK, UNTHINK, OPEN, CLOSE)
"""Some tokenizers make these special tokens; they end a block, never a turn."""

_FENCE = re.compile(r"^[ \t]*(`{3,}|~{3,})(.*)$", re.MULTILINE)
_REST_IS_BLANK = re.compile(r"[ \t]*(?:\n|\Z)")


def parse_turn(
    text: str,
    finish_reason: str,
    *,
    reasoning: str | None = None,
    thinking: bool = False,
    markers: Sequence[str] = (),
    call_format: str | None = None,
    tools: Sequence[Any] | None = None,
    tool_calls: Sequence[Any] | None = None,
) -> tuple[list[dict[str, Any]], str]:
    """Return (assistant messages, outcome) of one model turn.

    `markers` are the tokenizer's special tokens; one at the very end is the stop marker and is dropped. `thinking`
    declares a teacher that must think first. `reasoning` and `tool_calls` are what a server split off. `call_format`
    is one of `calls.READERS`, or None for a turn whose text holds no calls; `tools` are the tools that were offered.

    No text is lost: it is in content, reasoning_content or tool_calls. An output cut by the token limit is never an
    answer, and its calls are not read. A malformed call stays in content as it was written.
    """
    if finish_reason == "prompt_too_long":
        return [], "prompt_too_long"
    body = _without_stop_marker(text, markers)
    thought, answer = _split(body, reasoning, thinking)
    if finish_reason == "length":
        return [_message(_with_raw_calls(answer, tool_calls), thought)], _cut(answer, thought, thinking, tool_calls)
    try:
        calls, content = _find_calls(thought, answer, call_format, tools, tool_calls)
    except MalformedCall:
        if not answer.strip():
            thought, answer = None, body.strip() or thought or ""
        return [_message(_with_raw_calls(answer, tool_calls), thought)], "malformed_call"
    if thinking and not calls and not body.strip() and thought and not content.strip():
        # vLLM and SGLang give the whole answer of a model that skipped its thinking as reasoning (sglang#37645).
        return [_message(thought, None)], "no_thinking"
    return [_message(content, thought, calls)], _ended(content, thought, thinking, calls)


def _message(content: str, thought: str | None, calls: Sequence[Call] = ()) -> dict[str, Any]:
    # GLM-4.5's template prints a null content as the word None.
    message: dict[str, Any] = {"role": "assistant", "content": content.strip()}
    if thought is not None and thought.strip():
        message["reasoning_content"] = thought.strip()
    if calls:
        message["tool_calls"] = list(calls)
    return message


def _cut(answer: str, thought: str | None, thinking: bool, given: Sequence[Any] | None) -> str:
    if thought is None:
        return "cut_in_thinking" if thinking or _is_opened(answer) else "cut_in_answer"
    return "cut_in_answer" if given or (answer.strip() and not _is_opened(answer)) else "cut_in_thinking"


def _ended(content: str, thought: str | None, thinking: bool, calls: Sequence[Call]) -> str:
    if not calls and not content.strip():
        return "no_answer"
    # An empty block, such as GLM-4.5 writes after /nothink, is no thinking either.
    if _is_opened(content) or (thinking and not (thought and thought.strip())):
        return "no_thinking"
    return "complete"


def _is_opened(text: str) -> bool:
    return text.lstrip().startswith(THINK)


def _without_stop_marker(text: str, markers: Sequence[str]) -> str:
    """GLM-4.5 stops at one of three markers, and one may follow another; only the last is the stop."""
    ends = [marker for marker in markers if marker and marker not in _STRUCTURE and text.endswith(marker)]
    return text[: -len(max(ends, key=len))] if ends else text


def _find_calls(
    thought: str | None, answer: str, call_format: str | None, tools: Sequence[Any] | None, given: Sequence[Any] | None
) -> tuple[list[Call], str]:
    """The turn's calls and what stands outside them. Raises MalformedCall, also for a call only while thinking."""
    unthought = thought is None and _is_opened(answer)
    calls: list[Call] = []
    content = answer
    if call_format is not None and not unthought:
        calls, content = read_calls(answer, call_format, tools)
    if given:
        if calls:
            raise MalformedCall("calls both in the text and beside it")
        return normalise_calls(given, tools), content
    inside = answer if unthought else thought
    if call_format is not None and inside and not calls and _holds_call(inside, call_format, tools):
        # The server would have run nothing (vllm#46040): neither an answer nor a call to learn from.
        raise MalformedCall("a call inside the thinking")
    return calls, content


def _holds_call(thought: str, call_format: str, tools: Sequence[Any] | None) -> bool:
    """Each opener is read up to the next, so that the whole takes linear time."""
    bounds = itertools.pairwise([*_unquoted(thought, OPEN), len(thought)])
    return any(begins_with_call(thought[start:end], call_format, tools) for start, end in bounds)


def _with_raw_calls(answer: str, given: Sequence[Any] | None) -> str:
    """The answer, followed by calls that a server returned and that could not be used."""
    return f"{answer}\n{json.dumps(list(given), ensure_ascii=False, default=str)}" if given else answer


def _split(body: str, reasoning: str | None, thinking: bool) -> tuple[str | None, str]:
    """Thinking (None if there is no such block) and the rest of a turn.

    What a server split is put together again and split by our rule, so the same output gives the same message from
    every server: a server may split at a quoted closer, leave the block in the text, or split nothing.
    """
    if reasoning is None or not reasoning.strip():
        thought, answer = _split_text(body, thinking)
        return reasoning if thought is None else thought, answer
    inner = reasoning.lstrip().removeprefix(THINK)
    if not body.strip():
        at = next(_unquoted(inner, UNTHINK), len(inner))
        return inner[:at], inner[at + len(UNTHINK) :]
    if _is_opened(body):
        again, answer = _split_text(body, thinking)
        same = again is None or again.strip() in ("", inner.strip())
        return inner if same else f"{inner}\n{again}", answer
    whole = inner + UNTHINK + body
    at = next(_unquoted(whole, UNTHINK), len(inner))
    return whole[:at], whole[at + len(UNTHINK) :]


def _split_text(body: str, thinking: bool) -> tuple[str | None, str]:
    """Split at the closer that is meant: one in code or in quotes is talked about.

    - After an opener, or from a teacher that is declared to think (its template wrote the opener): the first closer
      outside code and quotes, and if there is none the first closer.
    - Else only a closer outside code and quotes, with no opener before it, and not in the middle of a sentence.
    """
    if UNTHINK not in body:
        return None, body
    opened = _is_opened(body)
    inner = body.lstrip().removeprefix(THINK) if opened else body
    if opened or thinking:
        at = next(_unquoted(inner, UNTHINK), inner.find(UNTHINK))
    else:
        opener = next(_unquoted(inner, THINK), len(inner))
        at = next((at for at in _unquoted(inner, UNTHINK) if at < opener and not _is_mention(inner, at)), -1)
    return (None, body) if at < 0 else (inner[:at], inner[at + len(UNTHINK) :])


def _is_mention(text: str, at: int) -> bool:
    """Whether a closer stands between words of one line. Templates and models put none there: `so 12.</think>`."""
    return text[at - 1 : at] in (" ", "\t") and not _REST_IS_BLANK.match(text, at + len(UNTHINK))


def _unquoted(text: str, tag: str) -> Iterator[int]:
    """Where a tag stands outside fenced code, inline code and quotes. Linear: each line and fence is seen once."""
    fences, inline, line_end = deque(_fences(text) if tag in text else ()), deque[tuple[int, int]](), -1
    for match in re.finditer(re.escape(tag), text):
        at = match.start()
        if at >= line_end:
            line_start, line_end = text.rfind("\n", 0, at) + 1, text.find("\n", at)
            line_end = len(text) if line_end < 0 else line_end
            inline = deque(_inline_code(text, line_start, line_end))
        for spans in (fences, inline):
            while spans and spans[0][1] <= at:
                spans.popleft()
        in_code = any(spans and spans[0][0] <= at for spans in (fences, inline))
        # Backticks on both sides need not be a pair: `a`</think>`b`.
        if not in_code and (text[at - 1 : at] == "`" or not is_quoted(text, at, match.end())):
            yield at


def _inline_code(text: str, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Inline code of one line: from a run of backticks to the next run as long.

    CommonMark lets it go on over line ends; in thinking a lone backtick is more often a slip.
    """
    runs = [match.span() for match in re.compile("`+").finditer(text, start, end)]
    following: dict[int, int] = {}
    partners: list[int | None] = []
    for run_start, run_end in reversed(runs):
        partners.append(following.get(run_end - run_start))
        following[run_end - run_start] = run_end
    covered = start
    for (run_start, _), partner in zip(runs, reversed(partners), strict=True):
        if partner is not None and run_start >= covered:
            covered = partner
            yield run_start, partner


def _fences(text: str) -> list[tuple[int, int]]:
    """Fenced code blocks, by CommonMark 0.31 section 4.5 but for two things that models do.

    A fence that is never closed is no code, and `</think>` may follow a closing fence on its line.
    """
    lines = [(match.start(), match.end(1), match[1], match[2].strip()) for match in _FENCE.finditer(text)]
    longest, ahead = {"`": 0, "~": 0}, []
    for _, _, run, rest in reversed(lines):
        ahead.append(longest[run[0]])
        if not rest or rest.startswith(UNTHINK):
            longest[run[0]] = max(longest[run[0]], len(run))
    spans, opened, opened_at = [], "", 0
    for (start, end, run, rest), reach in zip(lines, reversed(ahead), strict=True):
        closes = not rest or rest.startswith(UNTHINK)
        if opened and closes and run.startswith(opened):
            spans.append((opened_at, end))
            opened = ""
        elif not opened and reach >= len(run) and not rest.startswith(UNTHINK) and not (run[0] == "`" and "`" in rest):
            opened, opened_at = run, start
    return spans


def special_tokens(model: Path) -> tuple[str, ...]:
    """The special tokens of a model folder, longest first, read from tokenizer.json without loading a tokenizer."""
    file = model / "tokenizer.json"
    if not file.exists():
        return ()
    added = json.loads(file.read_text(encoding="utf-8")).get("added_tokens", [])
    return tuple(sorted((t["content"] for t in added if t.get("special")), key=lambda t: (-len(t), t)))

"""Tool calls that a model wrote into its text, or that a server returned, in one form.

A call in a message is `{"id", "type": "function", "function": {"name", "arguments"}}` with `arguments` a mapping, as
GLM-4.5's template needs it. Three ways of writing calls are read, each between `<tool_call>` and `</tool_call>`:

    glm45        get_weather\\n<arg_key>city</arg_key>\\n<arg_value>Oslo</arg_value>
    hermes       {"name": "get_weather", "arguments": {"city": "Oslo"}}
    qwen3_coder  <function=get_weather>\\n<parameter=city>\\nOslo\\n</parameter>\\n</function>

They are what the chat templates of GLM-4.5, Qwen3 and Qwen3-Coder write. A call is read from left to right, never cut
out by its tags first, so a value may hold `</tool_call>`. Every scan moves forward: time is linear in the text.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pipeline.records import content_id

OPEN, CLOSE = "<tool_call>", "</tool_call>"
MAX_DEPTH = 64  # of arguments: writing deeper ones again would exhaust Python's stack near 1000
_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
_QUOTES = {"`": "`", '"': '"', "'": "'", "“": "”", "«": "»"}

Call = dict[str, Any]
Tools = Mapping[str, Mapping[str, Any]]  # the schema of each offered tool's parameters, by the tool's name


class MalformedCall(ValueError):
    """A call that cannot be read with certainty. The turn is then no training data, and its text is kept."""


def read_calls(text: str, call_format: str, tools: Sequence[Any] | None = None) -> tuple[list[Call], str]:
    """The calls in an answer and the text outside them. Raises MalformedCall if any call is broken.

    A tag in quotes or backticks is a mention, and stays in the text. A call in a fenced block is a call, as it is for
    the model's own servers. What is left of a call without its opener is malformed, not an answer.
    """
    read, schemas = READERS[call_format], _schemas_of(tools)
    calls: list[Call] = []
    outside: list[str] = []
    kept_from = seen = at = 0
    while (start := text.find(OPEN, at)) >= 0:
        at = start + len(OPEN)
        if is_quoted(text, start, at):
            continue
        name, arguments, at = read(text, at, schemas)
        _refuse_stray(text[seen:start], call_format)
        seen = at
        if is_quoted(text, start, at):
            continue
        calls.append(_call(len(calls), name, arguments, schemas))
        outside.append(text[kept_from:start])
        kept_from = at
    _refuse_stray(text[seen:], call_format)
    outside.append(text[kept_from:])
    return calls, "\n".join(part.strip() for part in outside if part.strip())


def _refuse_stray(text: str, call_format: str) -> None:
    for match in re.finditer("|".join(_STRAY[call_format]), text):
        if not is_quoted(text, *match.span()):
            raise MalformedCall(f"{match.group()} without {OPEN}")


def normalise_calls(given: Sequence[Any], tools: Sequence[Any] | None = None) -> list[Call]:
    """Calls that a server returned, with arguments as a mapping. Raises MalformedCall.

    Servers give arguments as JSON text, object, null or "" (transformers#45419, oumi#2605). A server's id is kept, as
    tool results refer to it, unless two calls share it.
    """
    schemas = _schemas_of(tools)
    calls: dict[str, Call] = {}
    for entry in given:
        function = entry.get("function", entry) if isinstance(entry, dict) else None
        if not isinstance(function, dict):
            raise MalformedCall("a call is not an object")
        call = _call(len(calls), function.get("name"), _mapping(function.get("arguments")), schemas)
        own = entry.get("id")
        if isinstance(own, str) and own and own not in calls:
            call["id"] = own
        calls[call["id"]] = call
    return list(calls.values())


def begins_with_call(text: str, call_format: str, tools: Sequence[Any] | None = None) -> bool:
    """Whether a whole and sound call stands at the start, whatever follows."""
    schemas = _schemas_of(tools)
    try:
        name, arguments, _ = READERS[call_format](text, len(OPEN), schemas)
        _call(0, name, arguments, schemas)
    except MalformedCall:
        return False
    return text.startswith(OPEN)


def is_quoted(text: str, start: int, end: int) -> bool:
    """Whether text[start:end] stands directly between two matching quotes or backticks."""
    return start > 0 and _QUOTES.get(text[start - 1]) == text[end : end + 1]


def _call(index: int, name: Any, arguments: dict[str, Any], schemas: Tools) -> Call:  # noqa: ANN401 - any JSON value
    """One call in our form. Its id is made of its content and place, so parsing again gives the same id."""
    if not isinstance(name, str) or not (name in schemas if schemas else re.fullmatch(r"[^\s<>]+", name)):
        raise MalformedCall("no such tool" if schemas else "no name")
    if not _is_plain(arguments):
        raise MalformedCall("arguments that JSON cannot hold")
    call_id = "call_" + content_id("call", index, name, arguments)[:24]
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def _read_glm45(text: str, at: int, schemas: Tools) -> tuple[str, dict[str, Any], int]:
    name, tag, at = _until(text, at, "<arg_key>", CLOSE)
    name, pairs = name.strip(), []
    while tag == "<arg_key>":
        key, at = _inside(text, at, "</arg_key>", "<arg_key>", CLOSE)
        value, at = _inside(text, _next(text, at, "<arg_value>")[1], "</arg_value>", "<arg_key>", "<arg_value>")
        pairs.append((key.strip(), value))
        tag, at = _next(text, at, "<arg_key>", CLOSE)
    return name, _arguments(pairs, schemas.get(name, {}), {}), at


def _read_hermes(text: str, at: int, schemas: Tools) -> tuple[str, dict[str, Any], int]:
    call, at = _decode(text, at)
    _, at = _next(text, at, CLOSE)
    if not isinstance(call, dict) or not call.keys() <= {"name", "arguments"}:
        raise MalformedCall("not an object of name and arguments only; another key would be lost")
    return call.get("name", ""), _mapping(call.get("arguments")), at


def _read_qwen3_coder(text: str, at: int, schemas: Tools) -> tuple[str, dict[str, Any], int]:
    name, at = _inside(text, _next(text, at, "<function=")[1], ">", "<")
    pairs = []
    tag, at = _next(text, at, "<parameter=", "</function>")
    while tag == "<parameter=":
        key, at = _inside(text, at, ">", "<")
        value, at = _inside(text, at, "</parameter>", "<parameter=")
        # The template puts the value on lines of its own; one newline at each end is markup.
        pairs.append((key.strip(), value.removeprefix("\n").removesuffix("\n")))
        tag, at = _next(text, at, "<parameter=", "</function>")
    _, at = _next(text, at, CLOSE)
    # The template writes scalars by `| string`, so True, False and None come in Python's spelling.
    return name, _arguments(pairs, schemas.get(name, {}), {"True": True, "False": False, "None": None}), at


READERS = {"glm45": _read_glm45, "hermes": _read_hermes, "qwen3_coder": _read_qwen3_coder}
_STRAY = {"glm45": (CLOSE, "<arg_key>"), "hermes": (CLOSE,), "qwen3_coder": (CLOSE, "<function=")}


def _until(text: str, at: int, *tags: str) -> tuple[str, str, int]:
    """The text before the first of the tags, that tag, and where it ends."""
    if (match := re.compile("|".join(map(re.escape, tags))).search(text, at)) is None:
        raise MalformedCall(f"none of {tags}")
    return text[at : match.start()], match.group(), match.end()


def _inside(text: str, at: int, closer: str, *forbidden: str) -> tuple[str, int]:
    """The text before the closer. One that holds an opener lacks its closer, or cannot be told from one that does."""
    found, tag, at = _until(text, at, closer, *forbidden)
    if tag != closer:
        raise MalformedCall(f"{tag} before {closer}")
    return found, at


def _next(text: str, at: int, *tags: str) -> tuple[str, int]:
    """Which of the tags comes next, after white space only, and where it ends."""
    at = _after_space(text, at)
    for tag in tags:
        if text.startswith(tag, at):
            return tag, at + len(tag)
    raise MalformedCall(f"none of {tags} is next")


def _after_space(text: str, at: int) -> int:
    found = re.compile(r"\S").search(text, at)
    return found.start() if found else len(text)


def _arguments(pairs: list[tuple[str, str]], tool: Mapping[str, Any], spelled: Mapping[str, Any]) -> dict[str, Any]:
    schemas = tool.get("properties")
    found: dict[str, Any] = {}
    for key, text in pairs:
        if not key or key in found:
            raise MalformedCall("an argument without a name, or given twice")
        found[key] = _value(text, _types_of(schemas.get(key) if isinstance(schemas, dict) else None, tool), spelled)
    return found


def _value(text: str, types: frozenset[str], spelled: Mapping[str, Any]) -> Any:  # noqa: ANN401 - any JSON value
    """An argument's value from its text, by the types that the tool's schema allows; none means that it is silent.

    Both templates write strings raw and everything else as JSON, so text alone cannot tell the string 12 from the
    number. Text is then what it could have been written from: JSON that is no string, without space around it.
    """
    if types == {"string"}:
        return text
    try:
        value = spelled[text] if text in spelled else _decode_whole(text)
    except MalformedCall:
        if types and "string" not in types:
            raise
        return text
    if types and "string" not in types:
        return value
    fits = {_TYPES.get(type(value), "null"), "number" if type(value) is int else ""} & types
    is_text = isinstance(value, str) or (not fits if types else text != text.strip())
    return text if is_text else value


def _types_of(schema: Any, root: Mapping[str, Any], depth: int = 4) -> frozenset[str]:  # noqa: ANN401 - any JSON value
    """JSON types that a schema allows; empty where it does not say. Local references are followed, `depth` deep."""
    if not isinstance(schema, dict) or not depth:
        return frozenset()
    declared = schema.get("type")
    types = {t for t in (declared if isinstance(declared, list) else [declared]) if isinstance(t, str)}
    if not types:
        values = [schema["const"]] if "const" in schema else schema.get("enum")
        types = {_TYPES.get(type(value), "null") for value in (values if isinstance(values, list) else ())}
    unions = [schema.get(name) for name in ("anyOf", "oneOf", "allOf")]
    branches = [branch for union in unions if isinstance(union, list) for branch in union]
    if isinstance(schema.get("$ref"), str):
        target: Any = root
        for step in schema["$ref"].removeprefix("#/").split("/"):
            target = target.get(step) if isinstance(target, dict) else None
        branches.append(target)
    if types and schema.get("nullable"):
        types.add("null")
    return frozenset(types).union(*(_types_of(branch, root, depth - 1) for branch in branches))


def _schemas_of(tools: Sequence[Any] | None) -> Tools:
    """Tools by name, as OpenAI nests them under `function`, or flat."""
    schemas: dict[str, Mapping[str, Any]] = {}
    for tool in tools or ():
        function = tool.get("function", tool) if isinstance(tool, dict) else None
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            given = function.get("parameters")
            schemas[function["name"]] = given if isinstance(given, dict) else {}
    return schemas


def _mapping(value: Any) -> dict[str, Any]:  # noqa: ANN401 - any JSON value
    """Arguments as a mapping from what servers and models give: an object, its JSON text, null or nothing."""
    if isinstance(value, str):
        value = _decode_whole(value) if value.strip() else None
    if not isinstance(value, dict | None):
        raise MalformedCall("arguments are not an object")
    return value or {}


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(found := dict(pairs)) != len(pairs):
        raise MalformedCall("a key given twice")
    return found


def _finite(text: str) -> float:
    """A number as JSON has it: NaN, Infinity and what only Python's float can hold as infinite are refused."""
    if not math.isfinite(number := float(text)):
        raise MalformedCall("not finite")
    return number


_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_float=_finite, parse_constant=_finite)


def _decode(text: str, at: int) -> tuple[Any, int]:
    """One JSON value at a place in the text, after any white space, and where it ends."""
    try:
        return _DECODER.raw_decode(text, _after_space(text, at))
    except (ValueError, RecursionError):
        raise MalformedCall("broken JSON") from None


def _decode_whole(text: str) -> Any:  # noqa: ANN401 - any JSON value
    value, end = _decode(text, 0)
    if _after_space(text, end) != len(text):
        raise MalformedCall("text after JSON")
    return value


def _is_plain(value: Any) -> bool:  # noqa: ANN401 - any value
    """Whether a value can be written as JSON and UTF-8: finite numbers, no half of a surrogate pair, not too deep."""
    waiting = [(value, 0)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list):
            sound = depth < MAX_DEPTH and (isinstance(item, list) or all(isinstance(key, str) for key in item))
            parts = item if isinstance(item, list) else [*item, *item.values()]
            waiting += [(part, depth + 1) for part in parts]
        elif isinstance(item, str):
            sound = not re.search("[\ud800-\udfff]", item)
        else:
            sound = item is None or isinstance(item, int) or (isinstance(item, float) and math.isfinite(item))
        if not sound:
            return False
    return True

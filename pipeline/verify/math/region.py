"""Find the part of a final text that states its answer. What stands before `</think>` never counts."""

import re

from pipeline.verify.math.numbers import read_number

SHORT_CHARS = 400
"""A text up to this length may be an answer by itself instead of stating one."""

_IS = r"(?:is|are|=|:|(?:would|should|must) be)"
_OTHER_LANGUAGES = (
    r"réponse (?:\w+ )?est|respuesta (?:\w+ )?es|resposta (?:\w+ )?é|risposta (?:\w+ )?è|Antwort (?:ist|lautet)"
    r"|réponse\s*:|respuesta\s*:|resposta\s*:|risposta\s*:|Antwort\s*:|ответ\s*:|答案(?:是|为|為|\uff1a|:)|答えは"
)
TAIL_CHARS = 20_000
"""An answer without a box is looked for in so many characters at the end."""

_STATED = re.compile(
    r"\banswer\s+(?=\$|\\\(|\\\[|\(?(?-i:[A-Z])\b\)?(?!\w))|"
    # "The answer is", also with what it answers in between: "The answer to the given problem is".
    rf"\b(?:answer|result|solution|(?:option|choice)(?=\s*{_IS}))(?:\s[^.:=\n]{{0,80}}?)??\s{_IS}\s*:?\s*"
    r"|\b(?:answer|option|choice)\b[\s*_]*[:=][\s*_]*|^####\s*|^\W*(?:final\s+)?answer\W*$\s*"
    rf"|\b(?:choose|pick|select)\s+(?=(?:option\s|choice\s|answer\s)?\(?(?-i:[A-Z])\b)|(?:{_OTHER_LANGUAGES})\s*:?\s*",
    re.IGNORECASE | re.MULTILINE,
)
_FINAL = re.compile(r"\bfinal answer(?: is)?[\s:*]*(?=[$\d+-]|\\[(\[$])", re.IGNORECASE)
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_IS_IT = re.compile(
    r"(?:\$([^$\n]+)\$|\\\((.+?)\\\)|(?:\b(?:option|choice)\s+)?(?<![\w(])\(?([A-Z])\)?)\s+is\s+"
    r"(?:(?:the|our)\s+)?(?:(?:final|correct|right|best)\s+)?(?:answer|solution|result|option|choice|correct|right)\b"
)
_ENDS_IN = re.compile(r"(?:\b(?:is|are)|:)\s*:?\s*(\$\$[^$]+\$\$|\$[^$]+\$|\\\[.+?\\\]|\\\(.+?\\\))[\s.]*$", re.DOTALL)
_RESULT = re.compile(r"(.*)(?<![!<>:])=\s*([^=\n]+?)\s*")
_VARIABLE = re.compile(r"(?<![\\a-zA-Z])(?![aAI]\s)[a-zA-Z](?![a-zA-Z])|\\|\b(?:or|and)\b")
_FORMULA = re.compile(r"\s*(?:\$\$(.+?)\$\$|\$([^$]+)\$|\\\[(.+?)\\\]|\\\((.+?)\\\))([^\n]*)", re.DOTALL)


def spoken(text: str) -> str | None:
    """What a text says after its thinking; None if the thinking never ends."""
    text = text.rpartition("</think>")[2]
    return None if "<think>" in text else text


def answer_region(text: str) -> str | None:
    """The stated answer: the last `\\boxed{}`, else what follows "The answer is", else a last line's plain number.

    A "final answer is" behind the last box replaces it. None where nothing is stated, or a box was cut.
    """
    said = spoken(text)
    if said is None:
        return None
    start = max(said.rfind("\\boxed"), said.rfind("\\fbox"))
    cut = max(0, len(said) - TAIL_CHARS)
    final = list(_FINAL.finditer(said, cut))
    if start >= 0 and not (final and final[-1].start() > start):
        return braced(said, start + len("\\boxed" if said.startswith("\\boxed", start) else "\\fbox"))
    if cut:
        said, start = said[cut:], start - cut
        final = list(_FINAL.finditer(said))
    if tagged := _TAG.findall(said):
        return tagged[-1].strip() or None
    stated = [*final, *_STATED.finditer(said)] if start < 0 else final
    if stated:
        return _after(said, max(found.end() for found in stated))
    if is_it := _IS_IT.findall(said):
        return "".join(is_it[-1]).strip()
    if len(said) > SHORT_CHARS:
        return None
    ends_in = _ENDS_IN.search(said)
    return ends_in[1] if ends_in else _last_number(said)


def bare_answer(text: str) -> str | None:
    """A short text as a whole, for one that states nothing; it is right only if all of it equals the reference."""
    said = (spoken(text) or "").strip()
    return said if 0 < len(said) <= SHORT_CHARS and "\\boxed" not in said and "\\fbox" not in said else None


def braced(text: str, start: int) -> str | None:
    """The content of the brace group at `start`; None if it never closes (the answer was cut) or does not open."""
    start += len(text[start:]) - len(text[start:].lstrip())
    if not text.startswith("{", start):
        return None
    depth = 0
    for index in range(start, len(text)):
        escaped = text[index - 1] == "\\" and text[index - 2] != "\\"
        if text[index] == "{" and not escaped:
            depth += 1
        elif text[index] == "}" and not escaped:
            depth -= 1
            if depth == 0:
                return text[start + 1 : index].strip() or None
    return None


def _after(text: str, start: int) -> str | None:
    """The rest of the sentence at `start`, or the formula that begins there with what follows it in its sentence."""
    formula = _FORMULA.match(text, start)
    if formula:
        rest = re.split(r"[.!?](?:\s|$)|[,;]\s", formula[5], maxsplit=1)[0]
        inner = formula[1] or formula[2] or formula[3] or formula[4]
        return _right_side(f"${inner.strip()}${rest.rstrip('*_ ')}")
    line = text[start:].split("\n", 1)[0]
    sentence = re.split(r"(?<=[^\s.])[.!?](?=\s|$|[*_\"'])|\u3002", line, maxsplit=1)[0].strip("*_ ")
    sentence = re.sub(r"^<([^<>]*)>$", r"\1", sentence)
    return _right_side(sentence) or None


def _right_side(sentence: str) -> str:
    """`5 + 7 = 12` states 12, where its right side is a plain number and its left side holds no variables."""
    result = _RESULT.fullmatch(sentence)
    return result[2] if result and not _VARIABLE.search(result[1]) and read_number(result[2]) else sentence


def _last_number(text: str) -> str | None:
    candidate = _right_side(text.strip().rsplit("\n", 1)[-1].rstrip(". "))
    return candidate if read_number(candidate) else None

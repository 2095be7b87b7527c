"""Find the program in an answer."""

import re
from typing import NamedTuple

PYTHON = frozenset({"python", "python3", "py", "py3"})
UNMARKED = ""

_FENCE = re.compile(r"(`{3,}|~{3,})[ \t]*([^`]*)$")


class NoProgram(ValueError):
    """Why an answer holds no program: `no_code`, or `truncated`."""


class Block(NamedTuple):
    """A closed fenced block."""

    language: str
    source: str


def extract_program(answer: str, function: str | None) -> str:
    """The last closed Python block that defines the function, else the last one. Raises NoProgram.

    Blocks without a language count where none is marked as Python. Models like to add a block that only shows how the
    function is called. An answer that ends inside a Python block was cut, whatever came before. What stands before
    `</think>` is no answer. A bare definition without any fence is taken as it is.
    """
    answer = answer.rpartition("</think>")[2]
    blocks, cut = fenced_blocks(answer)
    if cut:
        raise NoProgram("truncated")
    marked = [block.source for block in blocks if block.language in PYTHON]
    sources = marked or [block.source for block in blocks if block.language == UNMARKED]
    if function is None:
        if not sources:
            raise NoProgram("no_code")
        return sources[-1]
    defining = re.compile(rf"^[ \t]*(?:async[ \t]+)?(?:def[ \t]+{function}\b|{function}[ \t]*[=:])", re.MULTILINE)
    for source in reversed(sources):
        if defining.search(source):
            return source
    if sources:
        return sources[-1]
    bare = answer.strip()
    if not blocks and re.match(r"(?:async|def|import|from|class)\b|@", bare) and defining.search(bare):
        return bare + "\n"
    raise NoProgram("no_code")


def fenced_blocks(answer: str) -> tuple[list[Block], bool]:
    """The closed fenced blocks, and whether the text ends inside one of Python or of no language.

    Line by line, as a regex would take quadratic time. A block ends at a fence of its own kind that is at least as
    long; the indentation of its first fence, as in a list, is taken from its lines.
    """
    blocks: list[Block] = []
    fence, language, indent = "", "", 0
    lines: list[str] = []
    for line in answer.splitlines():
        mark = line.strip()
        if fence:
            if mark.startswith(fence) and not mark.strip(fence[0]):
                blocks.append(Block(language, "\n".join(lines) + "\n"))
                fence = ""
            else:
                lines.append(line[min(indent, len(line) - len(line.lstrip(" "))) :])
        elif found := _FENCE.match(mark):
            fence, lines, indent = found[1], [], len(line) - len(line.lstrip(" "))
            language = (re.split(r"[\s,{:]", found[2].lower()) or [""])[0]
    return blocks, bool(fence) and (language in PYTHON or language == UNMARKED)

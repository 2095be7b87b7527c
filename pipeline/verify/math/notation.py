"""Bring the many spellings of one formula to one: LaTeX wrappers, spacing, Unicode signs and synonyms of commands.

plain(r"$\\left(\\dfrac12,\\ \\text{m}\\right)$") -> r"(\\frac{1}{2}, m)"

Nothing is parsed or evaluated here, and every step is linear or bounded by `limits.math.answer_chars`.
"""

import re
import unicodedata

MAX_DEPTH = 40
"""Deepest nesting of brackets that is read."""

_UNICODE = {
    **dict.fromkeys("\u2212\u2013\u2014\ufe63\uff0d", "-"),
    **{"\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00f7": "/", "\u2044": "/", "\u2215": "/"},
    **{"\u2264": r"\le ", "\u2265": r"\ge ", "\u2260": r"\ne ", "\u2248": r"\approx ", "\u2261": r"\equiv "},
    **{"\u03c0": r"\pi ", "\u221e": r"\infty ", "\u2205": r"\emptyset ", "\u222a": r"\cup ", "\u2229": r"\cap "},
    **{"\u2208": r"\in ", "\u211d": r"\mathbb{R}", "\u2124": r"\mathbb{Z}", "\u2115": r"\mathbb{N}"},
    **{"\u211a": r"\mathbb{Q}", "\u2102": r"\mathbb{C}", "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u2216": r"\setminus "},
    **{"\u00b0": r"^\circ ", "\u27e8": r"\langle ", "\u27e9": r"\rangle ", "\u2032": "'", "\u03b8": r"\theta "},
    **{"\u03b1": r"\alpha ", "\u03b2": r"\beta ", "\u03bb": r"\lambda ", "\u00a0": " ", "\u202f": r"\,"},
    **{"\u2009": r"\,", "\u2192": r"\to "},
}
_SUPERSCRIPTS = str.maketrans("\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079\u207b", "0123456789-")
_SUBSCRIPTS = str.maketrans("\u2080\u2081\u2082\u2083\u2084\u2085\u2086\u2087\u2088\u2089", "0123456789")
_SUPERSCRIPT = re.compile("[\u2070\u00b9\u00b2\u00b3\u2074-\u2079\u207b]+")
_SUBSCRIPT = re.compile("[\u2080-\u2089]+")
_ROOT = re.compile("\u221a\\s*(?:\\(([^()]*)\\)|(\\d+(?:\\.\\d+)?|[a-zA-Z]))")

_COMMANDS = {
    **dict.fromkeys(("leq", "leqslant", "leqq"), "le"),
    **dict.fromkeys(("geq", "geqslant", "geqq"), "ge"),
    **dict.fromkeys(("dfrac", "tfrac", "cfrac", "nicefrac", "sfrac"), "frac"),
    **dict.fromkeys(("thickapprox", "simeq"), "approx"),
    **dict.fromkeys(("smallsetminus", "backslash"), "setminus"),
    **dict.fromkeys(("ast", "times"), "cdot"),
    **{
        "neq": "ne",
        "varnothing": "emptyset",
        "infin": "infty",
        "isin": "in",
        "bigcup": "cup",
        "colon": ":",
        "Bbb": "mathbb",
        "mod": "bmod",
        "div": "/",
    },
    **{"dbinom": "binom", "tbinom": "binom", "tg": "tan", "ctg": "cot", "lt": "<", "gt": ">"},
    **{"lbrace": "{", "rbrace": "}", "lbrack": "[", "rbrack": "]"},
    **dict.fromkeys(("lvert", "rvert", "vert", "mid"), "|"),
}
_ROW = "\ue000"
"""Stands for the row break of matrices, whose backslashes would be taken for spacing."""
_COMMAND = re.compile(r"\\([a-zA-Z]+)")
_SIZES = re.compile(
    r"\\(?:left|right|big|Big|bigg|Bigg|bigl|bigr|Bigl|Bigr|middle|displaystyle|textstyle|limits|rm|bf|it)(?![a-zA-Z])\.?"
)
_INVISIBLE = re.compile(
    r"\\(?:color|phantom|hphantom|vphantom|label|tag)\s*\{[^{}]*\}|\\textcolor\s*\{[^{}]*\}(?=\s*\{)|(?<!\\)\{\s*\}|(?<!\\)\\$"
)
_THIN = re.compile(r"(?<=\d)\\[,:; ](?=\d{3}(?!\d))")
_SPACES = re.compile(r"\\[,;:> ]|~|\\(?:quad|qquad|enspace|thinspace|hfill)(?![a-zA-Z])|\\hspace\s*\{[^{}]*\}")
_TEXT = (
    r"\\(?:text|textbf|textit|textrm|textnormal|textsf|texttt|mathrm|mathbf|mathit|mathsf|mathtt|mathcal|mbox|hbox|"
    r"boldsymbol|bm|operatorname|emph|boxed|fbox|underline)\s*\*?\s*"
)
_WRAPPERS = re.compile(_TEXT + r"\{([^{}]*)\}")
_INFIX = re.compile(r"\{((?:[^{}]|\{[^{}]*\})*)\\(over|choose)(?![a-zA-Z])((?:[^{}]|\{[^{}]*\})*)\}")
_FRACTION = re.compile(r"\\(?:frac|binom)\s*\{")
_SHORT_TOP = re.compile(r"\\frac\s*(\d|[a-zA-Z](?<=\s.)|\\[a-zA-Z]+)")
_SHORT_ARGUMENT = re.compile(r"\s*(\d|[a-zA-Z]|\\[a-zA-Z]+)")
_SHORT_ROOT = re.compile(r"\\sqrt\s*(\d|[a-zA-Z](?![a-zA-Z]))")
_FUNCTION = re.compile(
    r"(?<![\\a-zA-Z])(?:(arcsin|arccos|arctan|sinh|cosh|tanh|sin|cos|tan|cot|ln|log|pi)(?![a-zA-Z])"
    r"|(sec|csc|exp|max|min|gcd|lcm)(?=\())"
)


def plain(text: str) -> str:
    """A formula without delimiters, wrappers and spacing commands, each sign and command in one spelling."""
    text = _currency(_unicode(text.strip())).replace("\\\\", _ROW)
    text = re.sub(r"\\[()\[\]]", " ", text).replace("$", " ")
    text = _THIN.sub("", text.replace("{,}", ",").replace(r"\!", ""))
    text = _SPACES.sub(" ", _SIZES.sub("", _INVISIBLE.sub("", text)))
    for _ in range(MAX_DEPTH):
        shorter = _WRAPPERS.sub(r" \1 ", text)
        if shorter == text:
            break
        text = shorter
    text = _COMMAND.sub(_command, text)
    text = text.replace("!=", r"\ne ").replace("<=", r"\le ").replace(">=", r"\ge ")
    text = re.sub(r"(?<=[\w)}])\s*\*\*\s*(?=[\w(\\-])", "^", text.strip().strip("*_`"))
    text = re.sub(r"(?<=[\w)}])\s*\*\s*(?=[\w(\\])", r"\\cdot ", text)
    text = re.sub(r"\b([ap])\.\s?m\b\.?", r"\1m", text)
    text = re.sub(r"\^\s*\{\s*\\circ\s*\}|\^\s*\\circ(?![a-zA-Z])|\\degree(?![a-zA-Z])", r" \\degree ", text)
    text = re.sub(r"\s*([\^_])\s*", r"\1", re.sub(r"\s+", " ", _braced_arguments(text)))
    text = re.sub(r"_(\w)", r"_{\1}", text).strip().strip("*_`").strip().rstrip(".,;\u3002").strip()
    text = re.sub(r"^([\"\u201c])(.*)[\"\u201d]$", r"\2", text)
    return text.replace(_ROW, "\\\\")


def _unicode(text: str) -> str:
    text = "".join(_UNICODE.get(char) or _vulgar(char) for char in text)
    text = _SUPERSCRIPT.sub(lambda m: "^{" + m[0].translate(_SUPERSCRIPTS) + "}", text)
    text = _SUBSCRIPT.sub(lambda m: "_{" + m[0].translate(_SUBSCRIPTS) + "}", text)
    text = _ROOT.sub(lambda m: rf"\sqrt{{{m[1] or m[2]}}}", text)
    return unicodedata.normalize("NFKC", text)


def _vulgar(char: str) -> str:
    """A vulgar fraction such as the sign for one half as `\\frac{1}{2}`; every other character as it is."""
    kind = unicodedata.decomposition(char) if char > "\x7f" else ""
    if not kind.startswith("<fraction>"):
        return char
    top, bottom = "".join(chr(int(code, 16)) for code in kind.split()[1:]).split("\u2044")
    return rf"\frac{{{top}}}{{{bottom}}}" if top and bottom else char


def _currency(text: str) -> str:
    r"""`\$` is money; so is a lone dollar sign before a digit, which delimits no formula."""
    if len(re.findall(r"(?<!\\)\$", text)) % 2 == 1:
        text = re.sub(r"^(\s*[-+]?\s*)\$(?=\s*\d)", r"\1\\$", text)
    text = text.replace(r"\$", r"\usd ").replace("\u20ac", r"\eur ").replace("\u00a3", r"\gbp ")
    return re.sub(r"\\euro(?![a-zA-Z])", r"\\eur", re.sub(r"\\pounds(?![a-zA-Z])", r"\\gbp", text))


def _command(found: re.Match[str]) -> str:
    name = _COMMANDS.get(found[1], found[1])
    if not name[0].isalpha():
        return f"\\{name}" if name in "{}" else name
    return f"\\{name}"


def _braced_arguments(text: str) -> str:
    r"""`\frac12` as `\frac{1}{2}`, `\sqrt2` as `\sqrt{2}`, and `\sqrt(2)`, which math-verify drops, as `\sqrt{2}`."""
    text = _INFIX.sub(lambda m: rf"\{'frac' if m[2] == 'over' else 'binom'}{{{m[1]}}}{{{m[3]}}}", text)
    text = _SHORT_TOP.sub(r"\\frac{\1}", text)
    at = 0
    while (found := _FRACTION.search(text, at)) and (end := closing(text, found.end() - 1)):
        at = found.end()
        if short := _SHORT_ARGUMENT.match(text, end + 1):
            text = f"{text[: end + 1]}{{{short[1]}}}{text[short.end() :]}"
    text = re.sub(r"(?<![\\a-zA-Z])sqrt\s*(?=\()", r"\\sqrt", text)
    text = _SHORT_ROOT.sub(r"\\sqrt{\1}", text)
    while (found := re.search(r"\\sqrt\s*\(", text)) and (end := closing(text, found.end() - 1)):
        text = f"{text[: found.start()]}\\sqrt{{{text[found.end() : end]}}}{text[end + 1 :]}"
    text = re.sub(r"(?<![\\\w])(?:infinity|Infinity|inf)(?!\w)", r"\\infty ", text)
    return _FUNCTION.sub(lambda m: f" \\{m[0]} ", text)


def closing(text: str, start: int) -> int | None:
    """Where the bracket at `start` closes, whatever kind closes it; None if it never does or nests too deep."""
    depth = 0
    for index, token in brackets(text, start):
        depth += 1 if token in OPENERS else -1
        if depth > MAX_DEPTH:
            return None
        if depth == 0:
            return index
    return None


_LIST_COMMA = re.compile(r",(?!\d{3}(?!\d))|(?<!\d),|\d{4},|\b0\d*,|[(\[]|\\\{")
_GROUPING_COMMA = re.compile(r"(?<=\d),(?=\d{3}(?!\d))")


def without_grouping(text: str) -> str:
    """`1,000x` as `1000x`, unless a comma may part elements: inside brackets, or not before three digits."""
    return text if _LIST_COMMA.search(text) else _GROUPING_COMMA.sub("", text)


OPENERS = frozenset({"(", "[", "{", r"\{", r"\langle"})
_BRACKET = re.compile(r"\\\{|\\\}|\\langle(?![a-zA-Z])|\\rangle(?![a-zA-Z])|\\.|[()\[\]{}]", re.DOTALL)


def brackets(text: str, start: int = 0) -> list[tuple[int, str]]:
    """Place and text of every bracket from `start` on, whatever its kind."""
    kinds = OPENERS | {")", "]", "}", r"\}", r"\rangle"}
    return [(found.start(), found[0]) for found in _BRACKET.finditer(text, start) if found[0] in kinds]


def balanced(text: str) -> bool:
    """Whether all brackets close, at a depth that is read; `[0,1)` is balanced, `{1)` is not."""
    depth: list[str] = []
    for _, token in brackets(text):
        if token in OPENERS:
            depth.append(token)
            if len(depth) > MAX_DEPTH:
                return False
        elif not depth or not _fits(depth.pop(), token):
            return False
    return not depth


def _fits(opener: str, closer: str) -> bool:
    half_open = opener in "([" and closer in ")]"
    return half_open or (opener, closer) in {("{", "}"), (r"\{", r"\}"), (r"\langle", r"\rangle")}


def split_top(text: str, separator: re.Pattern[str]) -> list[tuple[str, str]]:
    """Parts between separators outside all brackets, each with the separator before it (empty for the first)."""
    parts: list[tuple[str, str]] = []
    depth, start, before = 0, 0, ""
    edges = brackets(text)
    found_at = {found.start(): found for found in separator.finditer(text)}
    marks = sorted([(index, token) for index, token in edges] + [(index, "") for index in found_at])
    for index, token in marks:
        if token:
            depth += 1 if token in OPENERS else -1
        elif depth == 0 and index >= start:
            parts.append((before, text[start:index].strip()))
            before, start = found_at[index][0].strip(), found_at[index].end()
    parts.append((before, text[start:].strip()))
    return parts

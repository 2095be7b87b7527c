"""Content ids: equal content has equal ids on every machine, whatever the order of rows or workers."""

import hashlib
import json
import re
import unicodedata
from collections.abc import Sequence
from typing import Any

# Made once: json.dumps makes an encoder a call when it is given options.
_CANONICAL = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False)


def canonical_json(value: Any) -> str:  # noqa: ANN401 - any JSON value
    """JSON with sorted keys and no spaces: equal values give equal text.

    Nested values are stored this way so that Arrow never unifies the keys of two tool calls or fills in
    nulls (huggingface/datasets#7092). Raises ValueError for NaN and infinity, which are not JSON.
    """
    return _CANONICAL.encode(value)


def content_id(*parts: Any) -> str:  # noqa: ANN401 - any JSON values
    """32 hex digits (128 bits) naming the given JSON values by content."""
    return hashlib.blake2b(canonical_json(parts).encode(errors="surrogatepass"), digest_size=16).hexdigest()


def normalise_prompt(text: str) -> str:
    """Unicode NFKC with runs of white space made one space. Case, digits and symbols stay: they change tasks."""
    return re.sub(r"\s+", " ", unicodedata.normalize("NFKC", text)).strip()


def prompt_id_of(messages: Sequence[dict[str, Any]]) -> str:
    """Id of what the user asks: the user and tool turns, without system text, reference or source.

    Splits and prompt groups go by it, so an edited reference or system prompt never moves a task from one
    split to another.
    """
    asked = [normalise_prompt(str(m.get("content") or "")) for m in messages if m.get("role") != "system"]
    return content_id("prompt", asked)

"""Render conversations with the tokenizer's own chat template; nothing of any template is known here by name.

`load_tokenizer(folder)` gives a tokenizer that has a template, `ChatFormat(tokenizer, stop_ids)` renders with it.
"""

from pathlib import Path
from typing import Any

from pipeline.errors import UserError


def load_tokenizer(folder: Path, gguf_file: str | None = None) -> Any:  # noqa: ANN401 - a transformers tokenizer
    """The tokenizer of a model folder. Raises UserError where there is none or it has no chat template."""
    from transformers import AutoTokenizer

    extra = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **extra)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: no tokenizer can be loaded from here; give a model folder ({error})") from None
    if not tokenizer.chat_template:
        raise UserError(f"{folder}: the tokenizer has no chat template; put one in chat_template.jinja")
    return tokenizer

"""Render conversations with the tokenizer's own chat template; nothing of any template is known here by name.

`load_chat_format(folder)` reads a model folder: tokenizer, template, the tokens that end a turn (the generation
config's `eos_token_id`), and the strings that must never come from a message's text.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.records import content_id

Message = dict[str, Any]


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How one model writes conversations."""

    tokenizer: Any
    stop_ids: frozenset[int]
    """Tokens that end a turn when the model writes them."""
    control_tokens: tuple[str, ...]
    """Strings that the tokenizer turns into one added token, wherever they stand."""

    def render(self, messages: Sequence[Message], tools: list[Any] | None = None, *, prompt: bool = False) -> str:
        """The template's text; with `prompt` up to where the assistant begins to write."""
        text: str = self.tokenizer.apply_chat_template(
            list(messages), tools=tools, tokenize=False, add_generation_prompt=prompt
        )
        return text

    def tokenize(self, text: str) -> list[int]:
        """Token ids of rendered text; the template has already put every special token."""
        ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def token_after_last_turn(self) -> int | None:
        """The token that follows a finished conversation when the user speaks again.

        In a template without an end-of-turn token (GLM-4.5) this role token is what the model must write to stop.
        """
        probe = [{"role": role, "content": "a"} for role in ("user", "assistant", "user")]
        head, whole = self.render(probe[:2]), self.render(probe)
        following = self.tokenize(whole[len(head) :]) if whole.startswith(head) else []
        return following[0] if following else None

    def digest(self) -> dict[str, str]:
        """Content hashes of tokenizer and template, equal for every folder that holds the same two."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None:
            state: Any = self.tokenizer.get_vocab()
        else:
            state = json.loads(backend.to_str())
            # Set by whoever called the tokenizer last; they are no part of it.
            state.pop("truncation", None)
            state.pop("padding", None)
        return {"tokenizer": content_id(state), "template": content_id(self.tokenizer.chat_template)}


def load_tokenizer(folder: Path, gguf_file: str | None = None) -> Any:  # noqa: ANN401 - a transformers tokenizer
    """The tokenizer of a model folder. Raises UserError where there is none or it has no chat template."""
    from transformers import AutoTokenizer

    if not folder.is_dir():
        raise UserError(f"{folder}: is no folder; give a model folder, with tokenizer and chat template")
    extra = {"gguf_file": gguf_file} if gguf_file else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True, **extra)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder}: no tokenizer can be loaded from here; give a model folder ({error})") from None
    if not tokenizer.chat_template:
        raise UserError(f"{folder}: the tokenizer has no chat template; put one in chat_template.jinja")
    return tokenizer


def load_chat_format(folder: Path) -> ChatFormat:
    """Read a model folder. Raises UserError if it lacks tokenizer, template or a token that ends a turn."""
    tokenizer = load_tokenizer(folder)
    found: Any = None
    if (folder / "generation_config.json").exists():
        found = json.loads((folder / "generation_config.json").read_text(encoding="utf-8")).get("eos_token_id")
    stops = set(found) if isinstance(found, list) else {found}
    stops = (stops | {tokenizer.eos_token_id}) - {None}
    if not stops:
        raise UserError(f"{folder}: no token ends a turn; set eos_token_id in generation_config.json")
    # Some vocabularies keep runs of spaces as added tokens; those are ordinary text.
    control = sorted(token.content for token in tokenizer.added_tokens_decoder.values() if token.content.strip())
    return ChatFormat(tokenizer, frozenset(stops), tuple(control))

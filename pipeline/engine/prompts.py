"""Prompts that a model cannot take are settled before anything is sent."""

from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.engine.requests import Request
from pipeline.engine.settings import EndpointEngine, Teacher

if TYPE_CHECKING:
    from pipeline.chat.template import ChatFormat

_OVERHEAD = 512
"""Tokens that a template may add to the text of messages and tools: roles, a default system turn, how to call."""


class PromptLengths:
    """Counts the tokens of prompts that may be too long. No token has less than a byte, so most are told by bytes."""

    def __init__(self, teacher: Teacher, model: Path | None) -> None:
        self._teacher, self._model = teacher, model
        self._format: ChatFormat | None = None
        self._last: tuple[str, str | None, int] | None = None

    def too_long(self, request: Request, max_tokens: int) -> bool:
        """Whether prompt and output together exceed `max_model_len`. Running servers tell it by themselves."""
        engine = self._teacher.engine
        if isinstance(engine, EndpointEngine) or self._model is None:
            return False
        room = engine.max_model_len - max_tokens
        task = request.task
        if len(task.messages.encode()) + len((task.tools or "").encode()) + _OVERHEAD <= room:
            return False
        return self._count(task.messages, task.tools) > room

    def _count(self, messages: str, tools: str | None) -> int:
        import json

        from pipeline.chat.template import load_chat_format

        if self._last is None or self._last[:2] != (messages, tools):
            if self._format is None:
                assert self._model is not None
                self._format = load_chat_format(self._model)
            text = self._format.tokenizer.apply_chat_template(
                json.loads(messages),
                tools=None if tools is None else json.loads(tools),
                tokenize=False,
                add_generation_prompt=True,
                **self._teacher.template_kwargs,
            )
            self._last = (messages, tools, len(self._format.tokenize(text)))
        return self._last[2]

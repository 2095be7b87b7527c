"""What may go wrong at a server, and when: by request number, or by a predicate on the number and the body."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, TypeAlias, get_args

Body: TypeAlias = dict[str, Any]
Kind = Literal[
    "status",  # an HTTP error
    "context_length",  # HTTP 400 in vLLM's words for a prompt that is too long
    "hang",  # never answers
    "drop",  # closes the connection without an answer
    "drop_midway",  # closes it after half of the answer
    "dead_core",  # from now on every request hangs and the metrics stand still, until `revive`
    "slow_first_token",  # waits before the first token
    "hold_back",  # answers only after later requests were answered
    "no_choices",  # `choices` is empty
    "null_content",  # `content` is null
    "reasoning",  # thinking stands in a field of its own
    "cut_in_thinking",  # `length` was reached before the answer began
    "truncated_json",  # HTTP 200, the JSON ends too early
]
WHOLE: frozenset[Kind] = frozenset({"slow_first_token", "hold_back", "null_content", "reasoning", "cut_in_thinking"})
"""Kinds that still give an answer that a client can use."""


@dataclass(frozen=True, slots=True)
class Fault:
    """One way to go wrong."""

    kind: Kind
    status: int = 500
    """HTTP status of `status`."""
    message: str = "made by the stand-in"
    """Text of `status`."""
    retry_after: str | None = None
    """Retry-After header of `status`: seconds or a date."""
    seconds: float = 10.0
    """Wait of `slow_first_token`; the longest wait of `hold_back`."""
    later: int = 1
    """Later requests that `hold_back` waits for."""
    field: Literal["reasoning", "reasoning_content", "content"] = "reasoning"
    """Where `reasoning` and `cut_in_thinking` put the thinking; `content` is raw text with its <think> tag."""

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise ValueError(f"{self.kind}: no such fault; the kinds are {', '.join(get_args(Kind))}")


@dataclass(slots=True)
class Rule:
    """A fault and the requests that it meets."""

    fault: Fault
    when: Callable[[int, Body], bool]
    """Called with the request's number (from 0) and body."""
    times: int | None = None
    """How often it applies; always where None. With 1 a retry of the same body succeeds."""

    def applies(self, number: int, body: Body) -> bool:
        """Whether this request is met; counts down `times`."""
        if self.times == 0 or not self.when(number, body):
            return False
        if self.times is not None:
            self.times -= 1
        return True


def read_rules(entries: Iterable[Mapping[str, Any]]) -> list[Rule]:
    """Rules from JSON objects: the fields of a Fault with `at` (numbers), `every`, or `containing` (text in a message).

    `{"kind": "status", "status": 429, "retry_after": "1", "at": [0, 3]}`, `{"kind": "drop", "every": 100}`,
    `{"kind": "no_choices", "containing": "12 + 12", "times": 1}`.
    """
    names = {field.name for field in fields(Fault)}
    rules = []
    for entry in entries:
        fault = Fault(**{name: value for name, value in entry.items() if name in names})
        wanted = {name: value for name, value in entry.items() if name not in names and name != "times"}
        rules.append(Rule(fault, _predicate(wanted), entry.get("times")))
    return rules


def _predicate(wanted: Mapping[str, Any]) -> Callable[[int, Body], bool]:
    match dict(wanted):
        case {"at": [*numbers], **rest} if not rest:
            met = frozenset(numbers)
            return lambda number, body: number in met
        case {"every": int(period), **rest} if not rest:
            return lambda number, body: number % period == period - 1
        case {"containing": str(text), **rest} if not rest:
            return lambda number, body: text in str(body.get("messages", body.get("prompt")))
    raise ValueError(f"{dict(wanted)}: a fault needs one of `at`: [numbers], `every`: number, `containing`: text")

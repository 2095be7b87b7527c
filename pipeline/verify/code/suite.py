"""Tests in one shape, whatever format they came in."""

from dataclasses import dataclass
from typing import Any, TypeAlias

from pipeline.verify.code.compare import Comparator


class BadReference(ValueError):
    """What is wrong with tests, told so that the row can be mended."""


@dataclass(frozen=True, slots=True)
class Call:
    """A function called with arguments; its value is compared outside the box."""

    function: str
    arguments: list[Any]
    expected: tuple[Any, ...]
    """Values of which one has to come: APPS and TACO leave open whether an output is wrapped in a list."""

    def job(self) -> dict[str, Any]:
        """What the box is told."""
        return {"kind": "call", "function": self.function, "arguments": self.arguments}


@dataclass(frozen=True, slots=True)
class Expression:
    """One side of an assert, evaluated beside the program; the other side stays outside the box."""

    text: str
    expected: tuple[Any, ...]
    comparator: Comparator | None = None
    """Where the assert itself names a tolerance."""

    def job(self) -> dict[str, Any]:
        """What the box is told."""
        return {"kind": "expression", "text": self.text}


@dataclass(frozen=True, slots=True)
class Script:
    """Asserts that hold no literal to compare with. They run in the box, in a process that the program cannot touch:
    its functions are called from there by name, with plain data. Called weak in the evidence, as what the asserts
    expect is inside the box, and as nothing tells how much they check."""

    text: str
    names: tuple[str, ...]
    """Names that it uses without giving them a meaning: functions of the program, unless the setup defines them."""
    expected: tuple[Any, ...] = (True,)

    def job(self) -> dict[str, Any]:
        """What the box is told."""
        return {"kind": "script", "text": self.text, "names": self.names}


@dataclass(frozen=True, slots=True)
class Stdin:
    """A whole program that reads standard input; what it prints is compared outside the box."""

    given: str
    expected: str

    def job(self) -> dict[str, Any]:
        """What the box is told."""
        return {"kind": "stdin", "given": self.given}


Test: TypeAlias = Call | Expression | Script | Stdin


@dataclass(frozen=True, slots=True)
class Suite:
    """All tests of one task."""

    function: str | None
    """The function that an answer has to define, None where it is a whole program."""
    setup: str
    """Source that runs before the program: imports and helpers that its tests need."""
    tests: tuple[Test, ...]
    comparator: Comparator

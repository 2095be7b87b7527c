"""What judging one answer may cost."""

from pydantic import Field

from pipeline.config import StrictModel
from pipeline.sandbox import BoxLimits


class MathLimits(StrictModel):
    """Limits of comparing one mathematical expression with its reference."""

    cpu_s: int = Field(5, ge=1)
    """CPU seconds; a tower of powers burns any amount, and the answer is then `unknown`."""
    wall_s: float = Field(30, gt=0)
    """Wall-clock backstop; after it the comparison is tried once more alone."""
    memory_mb: int = Field(2048, ge=512)
    """Address space of the comparing process, in MiB."""
    answer_chars: int = Field(2000, ge=1)
    """A longer answer is refused: parsing takes more than linear time."""


class Limits(StrictModel):
    """Limits of every verifier."""

    math: MathLimits = MathLimits()
    code: BoxLimits = BoxLimits()
    """Limits of one test of a program; after the first test that runs out of time no further one is run."""

"""Judge programs by their tests: run in the box, compared outside. Formats and comparators: README, `Code tasks`."""

from pipeline.verify.code.program import VERSION, judge

__all__ = ["VERSION", "judge"]

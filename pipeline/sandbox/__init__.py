"""Run untrusted programs where they can do no harm: no network, no files, bounded time, memory and output."""

from pipeline.sandbox.box import BoxResult
from pipeline.sandbox.languages import program
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.setup import box_setup, python_argv, run_boxed
from pipeline.sandbox.tiers import BoxSetup, Tier

__all__ = ["BoxLimits", "BoxResult", "BoxSetup", "Tier", "box_setup", "program", "python_argv", "run_boxed"]

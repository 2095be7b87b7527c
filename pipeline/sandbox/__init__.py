"""Run untrusted programs where they can do no harm: no network, no files, bounded time, memory and output."""

from pipeline.sandbox.box import BoxResult, run_boxed
from pipeline.sandbox.limits import BoxLimits
from pipeline.sandbox.setup import BoxSetup, box_setup, python_argv

__all__ = ["BoxLimits", "BoxResult", "BoxSetup", "box_setup", "python_argv", "run_boxed"]

"""A stand-in for a vLLM server: the real protocol, made-up text, and faults on demand. Never a source of results.

As a program: `python -m benchmarks.standin --port 0` prints its address on the first line and serves until it is
ended; `--help` lists sizes, delays and faults. In a test: an aiohttp application, `StandIn(...).app()`.
"""

from benchmarks.standin.faults import Fault, Rule, read_rules
from benchmarks.standin.process import RunningStandIn, standin_process
from benchmarks.standin.server import StandIn

__all__ = ["Fault", "Rule", "RunningStandIn", "StandIn", "read_rules", "standin_process"]

"""Judge answers: pass, fail or unknown, with a reason. Needs neither Dask nor pyarrow, so it ships inside environments.

judge_items([Item("k", "math", "The answer is 12.", "complete", {"answer": "12"})], Limits())
-> [Judgement(verdict="pass", score=1.0, reason="equal", evidence={"answer": "12"})]
"""

from pipeline.verify.judge import VERIFIERS, close_verifiers, judge_items, judge_once
from pipeline.verify.judgement import MACHINE_REASONS, RETRY_REASONS, Item, Judgement
from pipeline.verify.limits import Limits, MathLimits

__all__ = [
    "MACHINE_REASONS",
    "RETRY_REASONS",
    "VERIFIERS",
    "Item",
    "Judgement",
    "Limits",
    "MathLimits",
    "close_verifiers",
    "judge_items",
    "judge_once",
]

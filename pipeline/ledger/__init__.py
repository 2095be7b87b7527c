"""Paid-for answers: durable, found by key, and never asked for twice."""

from pipeline.ledger.answer import CUT, TOO_LONG, Answer, Stored, choose
from pipeline.ledger.ledger import Ledger

__all__ = ["CUT", "TOO_LONG", "Answer", "Ledger", "Stored", "choose"]

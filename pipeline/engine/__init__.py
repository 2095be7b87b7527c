"""Paid-for samples: the vLLM server, the client that asks it, and the ledger that keeps every answer."""

from pipeline.engine.ledger import Answer, Ledger
from pipeline.engine.sampling import Request, SamplingCounts, collect_samples, make_requests, sample_missing
from pipeline.engine.settings import EndpointEngine, LocalEngine, Sampling, Teacher

__all__ = [
    "Answer",
    "EndpointEngine",
    "Ledger",
    "LocalEngine",
    "Request",
    "Sampling",
    "SamplingCounts",
    "Teacher",
    "collect_samples",
    "make_requests",
    "sample_missing",
]

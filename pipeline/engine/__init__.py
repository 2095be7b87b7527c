"""Samples of teachers: what is wanted, the servers that give it, and the ledger that keeps every answer."""

from pipeline.engine.requests import Request, key_fields, make_requests, model_folder
from pipeline.engine.rounds import Target
from pipeline.engine.sampling import Sampler, SamplingCounts
from pipeline.engine.settings import Budget, EndpointEngine, LocalEngine, Sampling, SlurmEngine, Teacher

__all__ = [
    "Budget",
    "EndpointEngine",
    "LocalEngine",
    "Request",
    "Sampler",
    "Sampling",
    "SamplingCounts",
    "SlurmEngine",
    "Target",
    "Teacher",
    "key_fields",
    "make_requests",
    "model_folder",
]

"""The benches' stand-in for a vLLM server, served from a thread of the test, with a short answer."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks import standin
from tests.loopback import on_loopback


@dataclass
class StandIn(standin.StandIn):
    """A stand-in whose answers fit into small token limits."""

    text: Callable[[dict], str] | None = lambda body: f"The answer is {body.get('seed', 0) % 100}.<|im_end|>"


@contextmanager
def serving(server: StandIn) -> Iterator[StandIn]:
    """Serve on a free loopback port."""
    with on_loopback(server.app()) as address:
        server.url = f"{address}/v1"
        yield server

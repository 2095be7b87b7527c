"""One model server, whoever runs it."""

from typing import Protocol


class Replica(Protocol):
    """A server that the stage started, submitted or was given. No method waits for the server."""

    name: str
    """For people: `vLLM 0`, `slurm 1234_0`, an address."""

    def start(self) -> None:
        """Start it, or start it again."""

    @property
    def url(self) -> str | None:
        """Base address ending in /v1, None while it is not known."""

    def alive(self) -> bool:
        """Whether its process or job exists, ready or not."""

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""

    def stop(self) -> None:
        """End it."""


class RunningServer:
    """A server that somebody else runs."""

    def __init__(self, url: str) -> None:
        self.name, self._url = url, url.rstrip("/")

    def start(self) -> None:
        """Not ours to start."""

    @property
    def url(self) -> str:
        """The given address."""
        return self._url

    def alive(self) -> bool:
        """Nothing to be seen from here; its answers tell."""
        return True

    def log_tail(self, lines: int = 15) -> str:
        """Its log is not ours to read."""
        return ""

    def stop(self) -> None:
        """Not ours to end."""

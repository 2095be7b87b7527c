"""Configs of stages that run once a training phase: `--set phase=general` chooses one of `phases`."""

from typing import Generic, TypeVar

from pydantic import BaseModel

from pipeline.config.base import StageConfig
from pipeline.errors import UserError

PhaseT = TypeVar("PhaseT", bound=BaseModel)


class PhasedConfig(StageConfig, Generic[PhaseT]):
    """A stage config with one block a phase."""

    phase: str
    """The phase to work on, one of `phases`."""
    phases: dict[str, PhaseT]
    """Every phase by name."""

    def chosen(self) -> PhaseT:
        """The block of the phase to work on. Raises UserError if there is none of that name."""
        if self.phase not in self.phases:
            raise UserError(f"phase: there is no phase `{self.phase}`; the phases are {', '.join(self.phases)}")
        return self.phases[self.phase]

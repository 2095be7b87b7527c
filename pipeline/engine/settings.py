"""What decides a sample, as config blocks: the model's engine and the sampling parameters."""

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from pipeline.config import StrictModel


class Sampling(StrictModel):
    """Sampling parameters, sent with every request."""

    temperature: float = Field(0.8, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling share."""
    max_tokens: int = Field(512, ge=1)
    """Output tokens at most; not part of a sample's ledger key, a finished shorter sample is reused."""


class VllmEngine(StrictModel):
    """What every vLLM server is started with, wherever it runs."""

    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Weights and activations."""
    max_model_len: int = Field(2048, ge=16)
    """Prompt and output tokens at most."""
    model: str | None = None
    """Model folder; default the folder given with --in teacher. Needed where a recipe has several such teachers."""


class LocalEngine(VllmEngine):
    """vLLM servers started by the stage on this machine."""

    type: Literal["local"] = "local"
    """Servers on this machine; how many stands in the machine file."""


class SlurmEngine(VllmEngine):
    """vLLM servers in jobs of a Slurm array, one a job."""

    type: Literal["slurm"]
    """Servers in Slurm jobs; how many, and of what kind, stands in the machine file."""


class EndpointEngine(StrictModel):
    """Running OpenAI-compatible servers; addresses and key stand in the machine file under the teacher's name."""

    type: Literal["endpoints"]
    """Servers that somebody else runs."""
    model: str
    """Model name sent with each request."""
    model_revision: str = Field(min_length=1)
    """What is served, for the ledger key: there are no weight files to fingerprint. Change it when the model does."""
    vllm: bool = True
    """Send vLLM's own fields (raw text with stop markers); false for other servers."""


class Teacher(StrictModel):
    """A model and how it is asked."""

    name: str = Field(pattern=r"^[A-Za-z0-9._-]+$")
    """Written into every sample."""
    engine: Annotated[LocalEngine | SlurmEngine | EndpointEngine, Field(discriminator="type")] = Field(
        default_factory=LocalEngine
    )
    """Where the model runs."""
    sampling: Sampling = Field(default_factory=Sampling)
    """How tokens are drawn."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as {enable_thinking: true}."""
    thinking: bool = False
    """True if the model must think in <think> tags first; an answer without them is then `no_thinking`."""
    call_format: Literal["glm45", "hermes", "qwen3_coder"] | None = None
    """How the model writes tool calls in its raw text; null where it has no tools."""
    domains: list[str] = Field(default_factory=list)
    """Ask it only tasks of these domains; empty for all."""
    max_tokens_if_cut: int | None = Field(None, ge=1)
    """Ask once more, with this larger token limit, for each sample that `sampling.max_tokens` cut; null keeps the cut
    sample. No other sample is asked again."""

    @model_validator(mode="after")
    def _second_limit_is_larger(self) -> "Teacher":
        if self.max_tokens_if_cut is not None and self.max_tokens_if_cut <= self.sampling.max_tokens:
            raise ValueError("max_tokens_if_cut must be larger than sampling.max_tokens")
        return self

    def takes(self, domain: str) -> bool:
        """Whether it is asked tasks of a domain."""
        return not self.domains or domain in self.domains

    @property
    def limits(self) -> tuple[int, ...]:
        """Token limits in the order in which they are tried."""
        return (self.sampling.max_tokens, *([self.max_tokens_if_cut] if self.max_tokens_if_cut else []))


class Budget(StrictModel):
    """What a run may spend. It ends in order when the first of them is reached, and keeps what it has."""

    output_tokens: int | None = Field(None, ge=1)
    """Output tokens received in this run, of each teacher."""
    gpu_hours: float | None = Field(None, gt=0)
    """Hours since the servers were started, times their number, times the GPUs of each."""

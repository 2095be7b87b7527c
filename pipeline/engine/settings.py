"""What decides a sample, as config blocks: the model's engine and the sampling parameters."""

from typing import Annotated, Any, Literal

from pydantic import Field

from pipeline.config import StrictModel


class Sampling(StrictModel):
    """Sampling parameters, sent with every request."""

    temperature: float = Field(0.8, ge=0)
    """0 is greedy."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Nucleus sampling share."""
    max_tokens: int = Field(512, ge=1)
    """Output tokens at most; not part of a sample's ledger key, a finished shorter sample is reused."""


class LocalEngine(StrictModel):
    """A vLLM server started by the stage, serving the model folder given with --in."""

    type: Literal["local"] = "local"
    """One server on this machine."""
    dtype: Literal["bfloat16", "float16", "float32"] = "bfloat16"
    """Weights and activations."""
    max_model_len: int = Field(2048, ge=16)
    """Prompt and output tokens at most."""


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
    engine: Annotated[LocalEngine | EndpointEngine, Field(discriminator="type")] = Field(default_factory=LocalEngine)
    """Where the model runs."""
    sampling: Sampling = Field(default_factory=Sampling)
    """How tokens are drawn."""
    template_kwargs: dict[str, Any] = Field(default_factory=dict)
    """Arguments of the chat template, such as {enable_thinking: true}."""
    thinking: bool = False
    """True if the model must think in <think> tags first; an answer without them is then `no_thinking`."""

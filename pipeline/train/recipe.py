"""What a training run is told: the recipe of a phase, and the spec handed to every rank as a JSON file."""

from pathlib import Path
from typing import Any, Literal

from pydantic import Field, model_validator

from pipeline.config import StrictModel


class TrainRecipe(StrictModel):
    """One phase of full fine-tuning with AdamW; the learning rate rises in a line and falls to zero."""

    learning_rate: float = Field(gt=0)
    """Highest learning rate."""
    epochs: int = Field(1, ge=1)
    """How often every packed row is seen."""
    rows_per_step: int = Field(ge=1)
    """Packed rows behind one optimizer step, over all ranks; gradient accumulation is derived from it."""
    zero_stage: Literal[0, 1, 2, 3] = 2
    """What DeepSpeed spreads over the ranks: nothing, optimizer states, gradients too, weights too."""
    dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of weights and activations in training; the optimizer's own copy is always float32."""
    save_dtype: Literal["bfloat16", "float32"] = "bfloat16"
    """Number format of the written checkpoint."""
    attention: Literal["sdpa", "flash_attention_2", "flash_attention_3"] = "sdpa"
    """Attention kernel; packed documents never see each other with any of them."""
    activation_checkpointing: bool = True
    """Compute activations again in the backward pass instead of keeping them."""
    warmup: float = Field(0.1, ge=0, le=1)
    """Share of the steps (0..1) in which the learning rate rises from zero."""
    schedule: Literal["cosine", "linear", "wsd"] = "cosine"
    """How the learning rate falls after warm-up: along a cosine, in a line, or in a line after a constant stretch."""
    decay: float = Field(0.1, ge=0, le=1)
    """With `wsd`: share of the steps (0..1), the last ones, in which it falls."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this norm."""
    save_steps: int = Field(50, ge=1)
    """Optimizer steps between two checkpoints that a killed run resumes from."""

    @model_validator(mode="after")
    def _warmup_and_decay_fit(self) -> "TrainRecipe":
        if self.schedule == "wsd" and self.warmup + self.decay > 1:
            raise ValueError(
                f"warmup {self.warmup} and decay {self.decay} are shares of the same steps; together 1 at most"
            )
        return self

    def schedule_settings(self, steps: int) -> dict[str, Any]:
        """The Trainer's settings of the learning rate over so many steps."""
        settings: dict[str, Any] = {"lr_scheduler_type": self.schedule, "warmup_steps": round(self.warmup * steps)}
        if self.schedule == "wsd":
            shape = {"num_decay_steps": round(self.decay * steps), "decay_type": "linear"}
            settings |= {"lr_scheduler_type": "warmup_stable_decay", "lr_scheduler_kwargs": shape}
        return settings


class TrainSpec(StrictModel):
    """One run as the ranks see it."""

    recipe: TrainRecipe
    init: Path
    packed: Path
    output: Path
    """Where the Hugging Face folder goes."""
    progress: Path
    """Checkpoints, metrics and logs."""
    device: Literal["cpu", "cuda"]
    seed: int
    limit: int | None

    @property
    def checkpoints(self) -> Path:
        """Folder of the checkpoints."""
        return self.progress / "checkpoints"

    @property
    def metrics(self) -> Path:
        """One JSON line per optimizer step."""
        return self.progress / "metrics.jsonl"

    @property
    def result(self) -> Path:
        """Written last, by a run that ended well."""
        return self.progress / "result.json"

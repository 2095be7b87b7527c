"""Write the trained weights as a Hugging Face folder and prove that loading it gives them back."""

import json
from pathlib import Path
from typing import Any

from pipeline.shards import write_json


def gather_weights(trainer: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a transformers Trainer
    """Every tensor of the trained model on rank 0, None elsewhere; all ranks must call it."""
    weights: dict[str, Any] | None = trainer.accelerator.get_state_dict(trainer.deepspeed)
    return weights if trainer.is_world_process_zero() else None


def save_and_compare(trainer: Any, tokenizer: Any, weights: dict[str, Any], output: Path, dtype: str) -> float:  # noqa: ANN401
    """Save in `dtype`, load again, and return the largest difference, which is 0. Raises RuntimeError if it is not."""
    import torch
    from transformers.integrations import unset_hf_deepspeed_config

    wanted = getattr(torch, dtype)
    model = trainer.accelerator.unwrap_model(trainer.deepspeed)
    kept = {name: _cast(name, tensor, wanted, model) for name, tensor in weights.items()}
    model.save_pretrained(output, state_dict=kept)
    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    write_json(output / "config.json", {**config, "dtype": dtype})  # it names the format trained in
    tokenizer.save_pretrained(output)
    unset_hf_deepspeed_config()  # under ZeRO-3 the copy would be spread over the ranks as well
    return compare(kept, output)


def _cast(name: str, tensor: Any, wanted: Any, model: Any) -> Any:  # noqa: ANN401 - torch objects
    """The tensor in the format to save, except where the model keeps float32 (a router's correction bias)."""
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    if not tensor.is_floating_point() or any(part in name for part in strict):
        return tensor
    return tensor.to(wanted)


def compare(trained: dict[str, Any], folder: Path) -> float:
    """Load a folder and compare it with the trained weights, tensor by tensor."""
    from transformers import AutoModelForCausalLM

    loaded = AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype="auto").state_dict()
    if trained.keys() != loaded.keys():
        odd = sorted(trained.keys() ^ loaded.keys())
        raise RuntimeError(f"{folder}: after loading, {len(odd)} tensors are missing or new, such as {odd[:4]}")
    worst = 0.0
    for name, tensor in trained.items():
        found = loaded[name]
        if found.shape != tensor.shape or found.dtype != tensor.dtype:
            raise RuntimeError(
                f"{folder}: {name} is {tuple(found.shape)} {found.dtype} after loading, "
                f"{tuple(tensor.shape)} {tensor.dtype} was trained"
            )
        difference = (found.double() - tensor.cpu().double()).abs().max().item() if tensor.numel() else 0.0
        if not difference == 0:  # also true for nan
            raise RuntimeError(f"{folder}: {name} differs by {difference} after loading")
        worst = max(worst, difference)
    return worst

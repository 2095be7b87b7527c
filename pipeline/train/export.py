"""Write the trained weights as a Hugging Face folder and prove that loading it gives them back."""

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from pipeline.shards import write_json


def gather_weights(trainer: Any) -> dict[str, Any] | None:  # noqa: ANN401 - a transformers Trainer
    """Every tensor of the trained model on rank 0, None elsewhere; all ranks must call it."""
    if trainer.deepspeed.zero_optimization_stage() < 3:
        # accelerate's copy would make two tensors of a tied one, and both would be written.
        weights: dict[str, Any] | None = trainer.accelerator.unwrap_model(trainer.deepspeed).state_dict()
    else:
        weights = trainer.accelerator.get_state_dict(trainer.deepspeed)
    return weights if trainer.is_world_process_zero() else None


def save_and_compare(trainer: Any, tokenizer: Any, weights: Mapping[str, Any], output: Path, dtype: str) -> float:  # noqa: ANN401
    """Save in `dtype`, load again, and return the largest difference, which is 0. Raises RuntimeError if it is not."""
    from transformers.integrations import unset_hf_deepspeed_config

    model = trainer.accelerator.unwrap_model(trainer.deepspeed)
    strict = getattr(model, "_keep_in_fp32_modules_strict", None) or ()
    kept = cast_weights(weights, dtype, strict)
    model.save_pretrained(output, state_dict=dict(kept))  # a copy: it drops the second name of a tied tensor
    config = json.loads((output / "config.json").read_text(encoding="utf-8"))
    write_json(output / "config.json", {**config, "dtype": dtype})  # it names the format trained in
    tokenizer.save_pretrained(output)
    unset_hf_deepspeed_config()  # under ZeRO-3 the copy would be spread over the ranks as well
    return compare(kept, output)


def cast_weights(weights: Mapping[str, Any], dtype: str, strict: Collection[str] = ()) -> dict[str, Any]:
    """The tensors in the format to save, except where the model keeps float32 (a router's correction bias).

    Two names of one tensor stay two names of one tensor, so that it is written once.
    """
    import torch

    wanted = getattr(torch, dtype)
    cast: dict[tuple[int, Any], Any] = {}
    kept = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point() or any(part in name for part in strict):
            kept[name] = tensor
        else:
            kept[name] = cast.setdefault((tensor.data_ptr(), tensor.shape), tensor.to(wanted))
    return kept


def compare(trained: Mapping[str, Any], folder: Path) -> float:
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

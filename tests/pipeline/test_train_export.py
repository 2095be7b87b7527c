"""The comparison of a written model with the trained weights can fail, and does where it should."""

import pytest

from pipeline.train.export import cast_weights, compare
from tests.tiny_models import write_tiny_llama


@pytest.fixture
def written(tmp_path):
    from transformers import AutoModelForCausalLM

    folder = write_tiny_llama(tmp_path)
    return folder, dict(AutoModelForCausalLM.from_pretrained(folder).state_dict())


def test_equal_weights_differ_by_nothing(written):
    folder, weights = written
    assert compare(weights, folder) == 0


def test_one_changed_number_a_nan_another_format_and_another_key_are_told(written):
    folder, weights = written
    name = "model.layers.1.mlp.up_proj.weight"
    for change in (1e-7, float("nan")):
        changed = weights[name].clone()
        changed[0, 0] += change
        with pytest.raises(RuntimeError, match=f"{name} differs"):
            compare({**weights, name: changed}, folder)
    with pytest.raises(RuntimeError, match="bfloat16 was trained"):
        compare({**weights, name: weights[name].bfloat16()}, folder)
    with pytest.raises(RuntimeError, match="1 tensors are missing or new"):
        compare({**weights, "extra": weights[name]}, folder)


def test_tied_tensors_stay_tied_and_strict_ones_keep_their_format(written):
    import torch

    _, weights = written
    cast = cast_weights(weights, "bfloat16", strict=["norm"])
    assert cast["lm_head.weight"] is cast["model.embed_tokens.weight"]
    assert {name: tensor.dtype for name, tensor in cast.items()} == {
        name: torch.float32 if "norm" in name else torch.bfloat16 for name in weights
    }

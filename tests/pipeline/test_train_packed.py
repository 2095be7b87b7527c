"""A packed row, put together as in training: no document sees another, and a row's loss is that of its documents."""

import pytest

from pipeline.train.recipe import TrainRecipe
from tests.tiny_models import write_tiny_llama

LENGTHS = (7, 12, 5)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    import torch
    from transformers import AutoModelForCausalLM

    attention = TrainRecipe(learning_rate=1e-5, rows_per_step=1).attention
    folder = write_tiny_llama(tmp_path_factory.mktemp("llama"))
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation=attention).eval()


def documents(model):
    import torch

    numbers = torch.Generator().manual_seed(0)
    return [torch.randint(2, model.config.vocab_size, (length,), generator=numbers).tolist() for length in LENGTHS]


def batch_of(parts):
    """What TRL's collator makes of one row, as in training; its tensors have one row of all tokens."""
    from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

    row = [token for part in parts for token in part]
    collate = DataCollatorForLanguageModeling(pad_token_id=0, padding_free=True)
    return collate([{"input_ids": row, "labels": row, "seq_lengths": [len(part) for part in parts]}])


def logits_of(model, parts):
    import torch

    # As in training: transformers looks for documents in positions only where no cache is asked for.
    batch = {name: value for name, value in batch_of(parts).items() if name in ("input_ids", "position_ids")}
    with torch.no_grad():
        return model(**batch, use_cache=False).logits[0].split([len(part) for part in parts])


def test_positions_begin_anew_with_each_document(model):
    positions = batch_of(documents(model))["position_ids"][0].tolist()
    assert positions == [number for length in LENGTHS for number in range(length)]


@pytest.mark.parametrize("changed", range(len(LENGTHS)))
def test_a_changed_document_changes_the_logits_of_no_other(model, changed):
    import torch

    parts = documents(model)
    before = logits_of(model, parts)
    parts[changed] = [2 + (token + 1) % 200 for token in parts[changed]]
    after = logits_of(model, parts)
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert torch.equal(old, new) == (number != changed)


def test_a_document_has_the_logits_that_it_has_alone(model):
    import torch

    parts = documents(model)
    for part, packed in zip(parts, logits_of(model, parts), strict=True):
        (alone,) = logits_of(model, [part])
        torch.testing.assert_close(packed, alone, rtol=1e-4, atol=1e-5)


def test_no_document_is_asked_for_the_first_token_of_the_next(model):
    labels = batch_of(documents(model))["labels"][0].tolist()
    starts = [sum(LENGTHS[:number]) for number in range(len(LENGTHS))]
    assert [index for index, label in enumerate(labels) if label == -100] == starts

"""One rank of a training run: `torchrun ... -m pipeline.train.worker SPEC.json`.

TRL trains the packed rows as they are, DeepSpeed spreads the states, and rank 0 writes metrics, the Hugging Face
folder and `result.json`. Loss is the mean over all trained tokens of a step, whatever their spread over ranks and
micro-batches. A run that finds a whole checkpoint of its own goes on from there.
"""

import os
import sys
from pathlib import Path
from typing import Any

from pipeline.shards import write_json
from pipeline.train.checkpoints import mark_complete, newest_complete
from pipeline.train.export import gather_weights, save_and_compare
from pipeline.train.metrics import StepMetrics, keep_steps, read_metrics
from pipeline.train.recipe import TrainSpec
from pipeline.train.rows import add_filler, plan_order, read_rows


def deepspeed_settings(spec: TrainSpec, accumulation: int) -> dict[str, Any]:
    """DeepSpeed's configuration. Without an `optimizer` block it takes torch's AdamW and compiles nothing."""
    recipe = spec.recipe
    zero: dict[str, Any] = {"stage": recipe.zero_stage, "stage3_gather_16bit_weights_on_model_save": True}
    if spec.device == "cpu":
        # The default of 5e8 numbers is a second copy of every gradient for a small model, and hides nothing here.
        zero |= {"reduce_bucket_size": 20_000_000, "allgather_bucket_size": 20_000_000}
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": recipe.max_grad_norm,
        "bf16": {"enabled": recipe.dtype == "bfloat16"},
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
    }


def trainer_settings(spec: TrainSpec, steps: int, accumulation: int) -> Any:  # noqa: ANN401 - a TRL SFTConfig
    """TRL's configuration: rows are taken as they are, in their order."""
    from trl import SFTConfig

    recipe = spec.recipe
    return SFTConfig(
        output_dir=str(spec.checkpoints),
        deepspeed=deepspeed_settings(spec, accumulation),
        use_cpu=spec.device == "cpu",
        bf16=recipe.dtype == "bfloat16",
        dataset_kwargs={"skip_prepare_dataset": True},
        packing=False,
        padding_free=True,  # positions restart at every document, by seq_lengths
        max_length=None,
        train_sampling_strategy="sequential",
        per_device_train_batch_size=1,
        gradient_accumulation_steps=accumulation,
        max_steps=steps,
        optim="adamw_torch_fused",
        learning_rate=recipe.learning_rate,
        **recipe.schedule_settings(steps),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        gradient_checkpointing=recipe.activation_checkpointing,
        save_strategy="steps",
        save_steps=recipe.save_steps,
        logging_steps=1,
        logging_nan_inf_filter=False,
        report_to="none",
        disable_tqdm=True,
        seed=spec.seed,
        data_seed=spec.seed,
        ddp_timeout=3600,
        dataloader_num_workers=0,
        dataloader_pin_memory=spec.device == "cuda",
    )


def make_callback(trainer: Any, spec: TrainSpec, metrics: StepMetrics, last_step: int) -> Any:  # noqa: ANN401
    """Check the engine, write metrics on rank 0, mark checkpoints whole once every rank has written its part."""
    import torch.distributed as dist
    from transformers import TrainerCallback

    class Recorder(TrainerCallback):  # type: ignore[misc]
        def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
            check_engine(trainer, spec)
            metrics.start()

        def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float], **_: Any) -> None:  # noqa: ANN401
            if dist.get_rank() == 0 and "loss" in logs:
                metrics.add(state.global_step, logs["loss"], logs["learning_rate"], float(logs["grad_norm"]))

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:  # noqa: ANN401
            # The last step's weights are exported at once; the Trainer would also save them here.
            if state.global_step == last_step:
                control.should_save = False
            return control

        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ANN401
            dist.barrier()
            if dist.get_rank() == 0:
                folder = spec.checkpoints / f"checkpoint-{state.global_step}"
                mark_complete(folder, state.global_step, dist.get_world_size())

    return Recorder()


def check_engine(trainer: Any, spec: TrainSpec) -> dict[str, Any]:  # noqa: ANN401 - a TRL SFTTrainer
    """What really trains. Raises RuntimeError unless it is a DeepSpeed engine of the wanted stage on every rank."""
    import torch.distributed as dist

    found = {
        "engine": type(trainer.deepspeed).__name__,
        "zero_stage": int(trainer.deepspeed.zero_optimization_stage()) if trainer.deepspeed else None,
        "world_size": dist.get_world_size(),
        "backend": dist.get_backend(),
    }
    wanted = {
        "engine": "DeepSpeedEngine",
        "zero_stage": spec.recipe.zero_stage,
        "world_size": int(os.environ["WORLD_SIZE"]),
    }
    if any(found[key] != value for key, value in wanted.items()):
        raise RuntimeError(f"the run is {found}, but {wanted} was asked for")
    return found


def use_gloo_alone() -> None:
    """Keep DeepSpeed from compiling its shared-memory collectives at the first start.

    They need a C++ compiler and are no faster here: 134 MB over two ranks took 0.18 s with them, 0.10 s with gloo.
    """
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def train(spec: TrainSpec) -> None:
    """Train, export and record one run; every rank calls it."""
    import torch
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import SFTTrainer

    ranks, rank = int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    recipe = spec.recipe
    rows = read_rows(spec.packed, spec.limit)
    order = plan_order(rows.num_rows, recipe.epochs, recipe.rows_per_step, spec.seed)
    steps = len(order) // recipe.rows_per_step
    lengths = [sum(row) for row in rows["seq_lengths"].to_pylist()] + [0]
    trained = [sum(label != -100 for label in row) for row in rows["labels"].to_pylist()] + [0]
    metrics = StepMetrics(spec.metrics, _per_step(lengths, order, steps), _per_step(trained, order, steps))
    found = newest_complete(spec.checkpoints, ranks)
    # The settings come first: under ZeRO-3 they decide how the weights below are loaded.
    settings = trainer_settings(spec, steps, recipe.rows_per_step // ranks)
    if rank == 0:
        keep_steps(spec.metrics, found[1] if found else 0)
    tokenizer = AutoTokenizer.from_pretrained(spec.init, local_files_only=True)
    model = AutoModelForCausalLM.from_pretrained(
        spec.init, local_files_only=True, dtype=getattr(torch, recipe.dtype), attn_implementation=recipe.attention
    )
    trainer = SFTTrainer(
        model=model,
        args=settings,
        train_dataset=Dataset(add_filler(rows)).select(order, keep_in_memory=True),
        processing_class=tokenizer,
    )
    trainer.add_callback(make_callback(trainer, spec, metrics, steps))
    trainer.train(resume_from_checkpoint=str(found[0]) if found else None)
    engine = check_engine(trainer, spec)
    weights = gather_weights(trainer)
    if weights is not None:
        difference = save_and_compare(trainer, tokenizer, weights, spec.output, recipe.save_dtype)
        resumed_at = found[1] if found else 0
        result = _result(spec, engine, rows.num_rows, order)
        write_json(spec.result, {**result, "resumed_at": resumed_at, "reload_max_abs_diff": difference})
    trainer.accelerator.wait_for_everyone()


def _per_step(counts: list[int], order: list[int], steps: int) -> list[int]:
    size = len(order) // steps
    return [sum(counts[row] for row in order[step * size : (step + 1) * size]) for step in range(steps)]


def _result(spec: TrainSpec, engine: dict[str, Any], num_rows: int, order: list[int]) -> dict[str, Any]:
    lines = read_metrics(spec.metrics)
    steps = len(order) // spec.recipe.rows_per_step
    if [line["step"] for line in lines] != list(range(1, steps + 1)):
        raise RuntimeError(f"{spec.metrics}: {len(lines)} steps were recorded, {steps} were planned")
    return {
        **engine,
        "rows": num_rows,
        "epochs": spec.recipe.epochs,
        "rows_seen": sum(row < num_rows for row in order),
        "steps": steps,
    }


def main() -> None:
    """Read the spec, train, leave the process group."""
    import torch.distributed as dist
    from torch.distributed.elastic.multiprocessing.errors import record

    spec = TrainSpec.model_validate_json(Path(sys.argv[1]).read_text(encoding="utf-8"))
    if spec.device == "cpu":
        use_gloo_alone()
    record(train)(spec)  # torchrun ends its log with the traceback of the rank that failed first
    dist.destroy_process_group()


if __name__ == "__main__":
    main()

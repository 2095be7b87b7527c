"""Claim: `pack` makes rows of tokens at least as fast as TRL prepares the same conversations, and fills them as well.

Peer: what TRL's SFTTrainer does to its dataset with `packing=True` and `assistant_only_loss=True`, in one process. Both
get the same conversations, all of which fit a row, and the same template, TRL's copy with the marks that its mask
needs. Rates are tokens by CPU-second, medians over alternating rounds; ours reads and writes its tables as well.
"""

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pipeline.chat.template import load_tokenizer
from pipeline.records import Trace, canonical_json
from pipeline.shards import write_table
from pipeline.train.rows import read_rows
from stages import pack

ROOT = Path(__file__).resolve().parents[1]
ROW_LENGTH = 8_192
TEXT = "so we add the two numbers and get 12 then x = 3y + 4 holds for every n, which proves it; let f(x) be"
Conversation = list[dict[str, str]]


def made_conversation(number: int) -> Conversation:
    """A question and an answer, or three of each; lengths as reasoning traces have them: log-normal, most short."""
    draw = random.Random(number)
    messages, words = [], TEXT.split()
    for _ in range(draw.choice((1, 1, 1, 3))):
        length = min(int(draw.lognormvariate(0, 1.0) * 300), 1_200)
        answer = " ".join(draw.choices(words, k=length + 1))
        messages.append({"role": "user", "content": f"Question {number}: {' '.join(draw.choices(words, k=20))}?"})
        messages.append({"role": "assistant", "content": answer})
    return messages


def made_trace(number: int, messages: Conversation) -> Trace:
    """The conversation as a record."""
    name = f"{number:07d}"
    text = canonical_json(messages)
    return Trace(
        *(name, name, name, "made", name, "CC0-1.0", "math", "train"), text, None, "t", "pass", 1.0, 1.0, 1, None
    )


def make_model(folder: Path) -> Path:
    """The demo's tokenizer and model, made by the stage `base`."""
    command = [sys.executable, "-m", "pipeline", "base", "--config", str(ROOT / "configs/demo/base.yaml")]
    command += ["--out", str(folder / "base"), "--report", str(folder / "base.json")]
    subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    return folder / "base"


MARKED = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}{{ SYSTEM }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>' }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""The demo's template with the marks of TRL's mask around what the assistant writes."""


def run_ours(folder: Path, model: Path, number: int) -> dict[str, float]:
    """One round of the stage, in this process."""
    output = folder / f"out-{number}"
    config = pack.Config.model_validate({"phase": "all", "phases": {"all": {"row_length": ROW_LENGTH}}})
    started = time.process_time()
    report = pack.run(config, {"traces": folder / "traces", "tokenizer": model}, output)
    seconds = time.process_time() - started
    if report["rejected"]:
        raise RuntimeError(f"conversations were rejected: {report}")
    return {"rate": int(report["tokens"]) / seconds, "fill": float(report["fill"]), "tokens": int(report["tokens"])}


def run_peer(folder: Path, model: Path, conversations: Sequence[Conversation]) -> dict[str, float]:
    """One round of TRL's preparation."""
    import datasets
    from transformers import LlamaConfig, LlamaForCausalLM
    from trl import SFTConfig, SFTTrainer

    datasets.disable_caching()
    datasets.disable_progress_bars()
    tokenizer = load_tokenizer(model)
    head = tokenizer.apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    tokenizer.chat_template = MARKED.replace("SYSTEM", repr(head[: head.index("<|im_start|>user")]))
    tiny = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
        )
    )
    settings = SFTConfig(
        output_dir=str(folder / "trl"),
        packing=True,
        max_length=ROW_LENGTH,
        assistant_only_loss=True,
        use_cpu=True,
        bf16=False,
        report_to="none",
    )
    spent: list[float] = []

    class Timed(SFTTrainer):  # type: ignore[misc]
        def _prepare_dataset(self, *arguments: Any, **named: Any) -> Any:  # noqa: ANN401
            started = time.process_time()
            prepared = super()._prepare_dataset(*arguments, **named)
            spent.append(time.process_time() - started)
            return prepared

    rows = datasets.Dataset.from_list([{"messages": messages} for messages in conversations])
    trainer = Timed(model=tiny, args=settings, train_dataset=rows, processing_class=tokenizer)
    lengths = [len(ids) for ids in trainer.train_dataset["input_ids"]]
    tokens = sum(lengths)
    return {"rate": tokens / sum(spent), "fill": tokens / (len(lengths) * ROW_LENGTH), "tokens": tokens}


def measure(folder: Path, model: Path, samples: int, rounds: int) -> dict[str, float]:
    """Medians over the rounds."""
    conversations = [made_conversation(number) for number in range(samples)]
    write_table(folder / "traces", Trace, map(made_trace, range(samples), conversations))
    (folder / "machine.yaml").write_text("workers: 1\n")
    os.environ["WARMSTART_MACHINE"] = str(folder / "machine.yaml")
    run_ours(folder, model, rounds)  # imports
    run_peer(folder, model, conversations[:10])
    ours, peers = [], []
    for number in range(rounds):
        ours.append(run_ours(folder, model, number))
        peers.append(run_peer(folder, model, conversations))
    if ours[0]["tokens"] != peers[0]["tokens"]:
        raise RuntimeError(f"the two make other tokens: {ours[0]['tokens']} and {peers[0]['tokens']}")
    packed = sum(map(sum, read_rows(folder / "out-0", None)["seq_lengths"].to_pylist()))
    if packed != ours[0]["tokens"]:
        raise RuntimeError(f"{packed} tokens lie in the rows, {ours[0]['tokens']} were told")
    rate, peer = (statistics.median(run["rate"] for run in runs) for runs in (ours, peers))
    return {
        "ratio": round(rate / peer, 3),
        "tokens_per_cpu_s": round(rate),
        "trl_tokens_per_cpu_s": round(peer),
        "fill": round(ours[0]["fill"], 4),
        "trl_fill": round(peers[0]["fill"], 4),
        "tokens": ours[0]["tokens"],
        "samples": samples,
        "rounds": rounds,
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="model folder with a ChatML template; without it the demo's is made")
    parser.add_argument("--samples", type=int, default=2_000)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        folder = Path(name)
        print(json.dumps(measure(folder, given.model or make_model(folder), given.samples, given.rounds)))


if __name__ == "__main__":
    main()

"""Planted leaks go, demo-like neighbours stay, and what could not be looked for is counted."""

import json

import pytest

from pipeline.errors import UserError
from pipeline.records import Rejected, Task, Trace, canonical_json, prompt_id_of
from pipeline.shards import iter_table, write_table
from stages.decontaminate import Config, run
from tests.made_traces import trace


def task(question, answer="1", split="heldout"):
    messages = [{"role": "user", "content": question}]
    reference = canonical_json({"answer": answer})
    told = canonical_json(messages)
    return Task(
        f"task-{question}",
        prompt_id_of(messages),
        "made",
        "1",
        None,
        "MIT",
        "math",
        told,
        None,
        "math",
        reference,
        split,
    )


def demo_prompts():
    """Prompts as the demo has them: long shared texts that differ in numbers alone."""
    signs = "+-"
    sums = [f"{a} {signs[a % 2]} {b} {signs[b % 2]} {c} =" for a in range(6) for b in range(6) for c in range(3)]
    sums = [f"State the final answer to the following arithmetic problem: {text}" for text in sums]
    products = [f"Calculate {a} * {b}." for a in range(10) for b in range(10)]
    words = ("odd", "even", "positive", "negative", "zero", "prime")
    code = [f"Write a Python function `is_{w}(n)` that returns True if n is {w} and False otherwise." for w in words]
    return sums + products + code


PROMPTS = demo_prompts()
HELD, TRAINED = PROMPTS[::3], [prompt for n, prompt in enumerate(PROMPTS) if n % 3]
CLEAN = [trace(prompt, f"Let me see: {prompt} The answer is {n}.") for n, prompt in enumerate(TRAINED)]
LEAKS = {
    "verbatim": trace(HELD[0], "1"),
    "mid-prompt": trace(f"My teacher asks this. {HELD[1]} What should I say?", "1"),
    "response": trace("Tell me a riddle.", f"Here is one.\n{HELD[2]}\nGood luck."),
    "short": trace(HELD[-8], "1"),
    "code": trace(f"Solve it quickly: {HELD[-1]}", "def f(n): ..."),
    "system": trace(
        "",
        "",
        messages=[
            {"role": "system", "content": f"Example: {HELD[3]}"},
            {"role": "user", "content": "Go on."},
            {"role": "assistant", "content": "Yes."},
        ],
    ),
}


def run_on(tmp_path, traces, tasks=None, **keys):
    write_table(tmp_path / "dedup", Trace, traces)
    write_table(tmp_path / "tasks", Task, tasks or [task(prompt) for prompt in HELD] + [task("x", split="train")])
    return run(Config(**keys), {"traces": tmp_path / "dedup", "tasks": tmp_path / "tasks"}, tmp_path / "out")


def test_every_planted_leak_goes_and_the_neighbours_stay(tmp_path):
    report = run_on(tmp_path, [*CLEAN, *LEAKS.values()])
    rejected = {row.id: row for row in iter_table(tmp_path / "out", Rejected)}
    assert set(rejected) == {leak.trace_id for leak in LEAKS.values()}
    assert report["traces"] == report["kept"] + report["rejected"] == len(CLEAN) + len(LEAKS)
    assert rejected[LEAKS["response"].trace_id].reason == "verbatim_in_response"
    evidence = json.loads(rejected[LEAKS["mid-prompt"].trace_id].evidence)
    assert evidence["item"] == f"task-{HELD[1]}" and evidence["text"].startswith("State the final answer")
    assert report["items"] == len(HELD) and report["items_verbatim_only"] > 0
    assert (
        len(json.loads((tmp_path / "out/benchmark.json").read_text())["verbatim_only"]) == report["items_verbatim_only"]
    )


def test_a_part_of_an_item_counts_with_its_answer_alone(tmp_path):
    item = (
        "A lamp in the cellar of Ursula has a resistance that nobody wrote down on the box. The meter shows nine "
        "amperes while the battery gives a steady tension of many volts. Which resistance does the lamp have?"
    )
    half = "The meter shows nine amperes while the battery gives a steady tension of many volts. Which is it?"
    traces = [trace(half, "It is 4711."), trace(half + " Please!", "I do not know.")]
    report = run_on(tmp_path, traces, [task(item, "4711")])
    assert (report["rejected_answered_in_prompt"], report["kept"]) == (1, 1)


def test_nothing_held_out_and_too_many_leaks_are_user_errors(tmp_path):
    with pytest.raises(UserError, match="none is held out"):
        run_on(tmp_path, CLEAN[:2], [task("x", split="train")])
    with pytest.raises(UserError, match="verbatim_in_prompt 1"):
        run_on(tmp_path, [LEAKS["verbatim"]], max_rejected=0.5)

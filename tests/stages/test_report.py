"""The report shows a whole run or the parts that are there, and no text of a record can become markup."""

import json
import re
import shutil
from pathlib import Path

import pytest

from pipeline.errors import UserError
from pipeline.records import Rejected, Sample, Task, Trace, Verdict, canonical_json
from pipeline.report.charts import number
from pipeline.report.histograms import length_histogram, rate_histogram
from pipeline.shards import write_table
from stages.report import Config, run

HOSTILE = "<script>alert('x')</script> & </title> \" onload=x"
REPORTS = {
    "tasks": {"tasks": 6, "train": 4, "heldout": 2, "rejected": 1, "rejected_duplicate": 1, "prompt_overlap": 0},
    "generate": {"requested": 16, "complete": 14, "reused": 3, "server_requests": 4, "server_generated_tokens": 640},
    "verify": {"pass": 6, "fail": 9, "unknown": 1},
    "filter": {"samples": 16, "kept": 5, "rejected": 11, "rejected_fail": 8, "rejected_unknown": 1},
    "pack/general": {"documents": 5, "rows": 2},
    "sft/general": {"engine": "DeepSpeedEngine", "world_size": 2, "steps": 3, "zero_stage": 2, HOSTILE: HOSTILE},
    "evaluate": {
        "tasks": 2,
        "math_tasks": 2,
        "base_accuracy": 0.25,
        "base_low": 0.1,
        "base_high": 0.45,
        "tuned_accuracy": 0.5,
        "tuned_low": 0.3,
        "tuned_high": 0.7,
        "base_math_accuracy": 0.25,
        "base_math_low": 0.1,
        "base_math_high": 0.45,
        "tuned_math_accuracy": 0.5,
        "tuned_math_low": 0.3,
        "tuned_math_high": 0.7,
        "only_base": 1,
        "only_tuned": 7,
        "paired_p_value": 0.0703,
    },
}


def write_reports(folder: Path) -> Path:
    for name, report in REPORTS.items():
        path = folder / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(report))
    return folder


def write_run(folder: Path) -> dict[str, Path]:
    """Every input of the stage, with markup in every text that a model or a source can choose."""
    question = canonical_json([{"role": "user", "content": f"2 + 2? {HOSTILE}"}])
    tasks, samples, verdicts, traces, rejected = [], [], [], [], []
    for number_ in range(6):
        split = "train" if number_ < 4 else "heldout"
        name = f"t{number_}"
        tasks.append(Task(name, f"p{number_}", HOSTILE, "1", None, "MIT", "math", question, None, "math", "{}", split))
        for index in range(4 if split == "train" else 0):
            sample = f"{name}-{index}"
            text = f"It is {index}. {HOSTILE}"
            turns = canonical_json([{"text": text, "finish_reason": "stop"}])
            answer = canonical_json([{"role": "assistant", "content": text, "reasoning_content": HOSTILE}])
            outcome = "cut_in_answer" if index == 3 else "complete"
            samples.append(Sample(sample, name, index, "t", turns, answer, outcome, 9, 10 * number_ + index, 1))
            good = index < number_
            verdict = "pass" if good else "fail"
            verdicts.append(Verdict(sample, "math", "1", verdict, float(good), HOSTILE, "{}"))
            if good:
                talk = canonical_json(json.loads(question) + json.loads(answer))
                traces.append(
                    Trace(
                        sample,
                        name,
                        f"p{number_}",
                        HOSTILE,
                        "1",
                        "MIT",
                        "math",
                        split,
                        talk,
                        None,
                        "t",
                        "pass",
                        1.0,
                        number_ / 4,
                        4,
                        12,
                    )
                )
            else:
                rejected.append(Rejected(sample, "filter", HOSTILE if index == 3 else "fail", "{}"))
    write_table(folder / "tasks", Task, tasks)
    write_table(folder / "generate", Sample, samples)
    write_table(folder / "verify", Verdict, verdicts)
    write_table(folder / "filter", Trace, traces)
    write_table(folder / "filter", Rejected, rejected)
    losses = folder / "sft/general/losses.csv"
    losses.parent.mkdir(parents=True)
    losses.write_text("step,loss,learning_rate\n1,2.5,1e-4\n2,1.5,5e-5\n3,0.75,0\n")
    (folder / "evaluate").mkdir()
    return {
        "reports": write_reports(folder / "reports/demo"),
        "tasks": folder / "tasks",
        "samples": folder / "generate",
        "verdicts": folder / "verify",
        "traces": folder / "filter",
        "tuned": folder / "sft",
        "evaluation": folder / "evaluate",
    }


def headings(page: str) -> list[str]:
    return re.findall(r"<h2[^>]*>([^<]*)</h2>", page)


def test_whole_run_has_every_section(tmp_path):
    report = run(Config(), write_run(tmp_path), tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text()
    sections = ["Funnel", "Result", "Samples", "Training", "Overlap", "Evidence", "Traces", "Where it lies"]
    assert headings(page) == sections
    assert report["sections"] == len(sections)
    for expected in ("DeepSpeedEngine", "50.0% [30.0%, 70.0%]", "0.0703", "It is 0.", "server_generated_tokens"):
        assert expected in page


def test_no_text_of_a_record_becomes_markup_and_nothing_is_loaded(tmp_path):
    run(Config(), write_run(tmp_path), tmp_path / "out")
    page = (tmp_path / "out/index.html").read_text()
    assert "<script" not in page
    assert "&lt;script&gt;alert" in page
    assert page.count("</title>") == page.count("<title>")
    assert '" onload' not in page
    assert not re.search(r"https?://", page)
    assert not re.search(r"<(link|img|iframe|object|base)\b", page)


def test_a_part_that_is_absent_is_left_out(tmp_path):
    inputs = write_run(tmp_path)
    (inputs["reports"] / "evaluate.json").unlink()
    only = {name: inputs[name] for name in ("reports", "tasks", "samples")}
    run(Config(), only, tmp_path / "out")
    assert headings((tmp_path / "out/index.html").read_text()) == ["Funnel", "Samples", "Evidence", "Where it lies"]


def test_an_empty_run_still_makes_a_page(tmp_path):
    (tmp_path / "demo").mkdir()
    run(Config(), {"reports": tmp_path / "demo"}, tmp_path / "out")
    assert headings((tmp_path / "out/index.html").read_text()) == ["Where it lies"]


def test_tasks_rejected_whole_leave_a_report(tmp_path):
    inputs = write_run(tmp_path)
    write_table(tmp_path / "filter", Trace, [])
    write_table(tmp_path / "verify", Verdict, [])
    run(Config(), inputs, tmp_path / "out")
    assert "Traces" in headings((tmp_path / "out/index.html").read_text())


def test_summary_fits_a_screen_and_names_model_and_report(tmp_path):
    inputs = write_run(tmp_path)
    run(Config(location="data/demo/report"), inputs, tmp_path / "out")
    text = (tmp_path / "out/summary.txt").read_text()
    assert len(text.splitlines()) < 40
    for expected in ("kept traces", "25.0% [10.0%, 45.0%]", "p = 0.0703", "data/demo/report/index.html", "0.750"):
        assert expected in text
    assert str(inputs["tuned"]) in text


def test_same_inputs_give_the_same_bytes(tmp_path):
    inputs = write_run(tmp_path)
    for name in ("one", "two"):
        run(Config(), inputs, tmp_path / name)
    for file in ("index.html", "summary.txt"):
        assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()


def test_broken_report_file_is_named(tmp_path):
    (tmp_path / "demo").mkdir()
    (tmp_path / "demo/verify.json").write_text("{")
    with pytest.raises(UserError, match=r"verify\.json"):
        run(Config(), {"reports": tmp_path / "demo"}, tmp_path / "out")


def test_a_report_of_an_earlier_page_is_not_shown(tmp_path):
    inputs = write_run(tmp_path)
    (inputs["reports"] / "report.json").write_text('{"sections": 8}')
    run(Config(), inputs, tmp_path / "out")
    assert "All numbers of report" not in (tmp_path / "out/index.html").read_text()


def test_phases_come_in_the_order_of_training(tmp_path):
    inputs = write_run(tmp_path)
    shutil.copytree(tmp_path / "sft/general", tmp_path / "sft/agentic")
    for phases, first in (([], "agentic"), (["general", "agentic"], "general")):
        run(Config(phases=phases), inputs, tmp_path / "out")
        text = (tmp_path / "out/summary.txt").read_text()
        assert re.search(r"trained (\w+)", text).group(1) == first


def test_histograms_lose_no_value():
    assert sum(rate_histogram([0, 0.1, 0.25, 0.26, 0.5, 0.75, 0.99, 1, 1])) == 9
    assert rate_histogram([0, 1]) == [1, 0, 0, 0, 0, 1]
    for longest in (0, 1, 19, 20, 21, 4095):
        labels, series = length_histogram({"complete": [0, longest], "other": []})
        assert sum(series["complete"]) == 2
        assert set(series) == {"complete"}
        assert len(labels) == len(series["complete"])


def test_numbers_are_written_for_people():
    assert [number(value) for value in (1234567, 0.123456, 3.0, True, "x", float("nan"), None)] == [
        "1,234,567",
        "0.1235",
        "3",
        "True",
        "x",
        "nan",
        "None",
    ]

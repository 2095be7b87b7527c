"""Show the whole run on one HTML page and in a short text.

in:   reports  the folder of every stage's numbers; and, where they are there, tasks, samples, verdicts, traces,
               tuned (the fine-tuned model with `losses.csv`) and evaluation
out:  index.html   self-contained: no script, nothing loaded from outside
      summary.txt  under 40 lines: what `make demo` ends with

A part that is absent is left out:

  warmstart report --config configs/demo/report.yaml --in reports=reports/demo --out /tmp/page --report /tmp/page.json
"""

from collections.abc import Mapping
from pathlib import Path

from pydantic import Field

from pipeline.config import StageConfig
from pipeline.records import Report
from pipeline.report import Block, Chart, Conversation, Interval, Section, Table, Tile, render_page
from pipeline.report.charts import bars, columns, intervals, lines, number
from pipeline.report.facts import (
    Counts,
    Example,
    Overlap,
    count_overlap,
    count_tables,
    load_losses,
    load_reports,
    pick_kept,
    pick_rejected,
)
from pipeline.report.histograms import RATE_BINS, length_histogram, rate_histogram
from pipeline.shards import write_text

INPUTS: Mapping[str, str] = {"reports": "folder of the stages' reports"}
OPTIONAL_INPUTS: Mapping[str, str] = {
    "tasks": "output of `tasks`",
    "samples": "output of `generate`",
    "verdicts": "output of `verify`",
    "traces": "output of `filter`",
    "tuned": "output of `sft`: a model folder, or a folder with one a phase",
    "evaluation": "output of `evaluate`",
}

EVIDENCE = {
    "generate": ("requested", "requests_sent", "reused", "server_requests", "server_generated_tokens", "output_tokens"),
    "sft": ("engine", "zero_stage", "world_size", "backend", "steps", "rows", "rows_seen", "reload_max_abs_diff"),
}
"""Numbers that could not stand there unless the servers and the training engine had really run."""


class Config(StageConfig):
    """What the report shows."""

    location: str = "data/demo/report"
    """Where the output will lie, as printed in the summary."""
    phases: list[str] = Field(default_factory=list)
    """Phases in the order of training; others follow by name."""
    kept_examples: int = Field(2, ge=0)
    """Kept traces to show of each domain."""
    rejected_examples: int = Field(1, ge=0)
    """Rejected samples to show of each reason."""


class Run:
    """Everything known about the run that is reported."""

    def __init__(self, config: Config, inputs: Mapping[str, Path]) -> None:
        get = inputs.get
        self.config, self.inputs = config, inputs
        found = load_reports(inputs["reports"])
        self.reports = {name: report for name, report in found.items() if name != "report"}
        self.counts: Counts = count_tables(get("tasks"), get("samples"), get("verdicts"))
        self.losses = load_losses(inputs["tuned"], config.phases) if "tuned" in inputs else {}
        self.overlap: Overlap | None = None
        self.examples: list[Example] = []
        if "traces" in inputs:
            self.examples = pick_kept(inputs["traces"], config.kept_examples)
            if "tasks" in inputs:
                self.overlap = count_overlap(inputs["tasks"], inputs["traces"])
            if "tasks" in inputs and "samples" in inputs:
                tables = (inputs["traces"], inputs["tasks"], inputs["samples"])
                self.examples += pick_rejected(*tables, config.rejected_examples)

    @property
    def model(self) -> Path | None:
        """The model folder of the last phase."""
        tuned = self.inputs.get("tuned")
        phases = [tuned / phase for phase in self.losses if (tuned / phase).is_dir()] if tuned else []
        return phases[-1] if phases else tuned

    def number_of(self, stage: str, key: str) -> int | float | None:
        """One number of a stage's report, summed over its phases; None where it is absent."""
        of_stage = [r[key] for name, r in self.reports.items() if name.split("/")[0] == stage and key in r]
        numbers = [value for value in of_stage if isinstance(value, int | float)]
        return sum(numbers) if numbers else None

    def funnel(self) -> list[tuple[str, int | float]]:
        """From what was asked to what was trained on."""
        counts = self.counts
        steps = (
            ("training tasks", self.number_of("tasks", "train")),
            ("samples asked for", self.number_of("generate", "requested")),
            ("complete answers", self.number_of("generate", "complete")),
            ("verified right", counts.verdicts["pass"] if counts.verdicts else None),
            ("kept traces", self.number_of("filter", "kept")),
            ("asking something new", self.number_of("dedup", "kept")),
            ("free of held-out tasks", self.number_of("decontaminate", "kept")),
            ("packed, all phases", self.number_of("pack", "documents")),
        )
        return [(name, value) for name, value in steps if value is not None]

    def rejections(self) -> list[tuple[str, str, int | float]]:
        """(stage, reason, count) of everything rejected anywhere."""
        return [
            (stage, key.removeprefix("rejected_"), value)
            for stage, report in self.reports.items()
            for key, value in report.items()
            if key.startswith("rejected_") and isinstance(value, int | float) and value
        ]

    def accuracies(self) -> dict[str, dict[str, Interval]]:
        """{group: {base or tuned: (accuracy, low, high)}}, all tasks first, then each domain."""
        report = self.reports.get("evaluate", {})
        domains = sorted(key.removesuffix("_tasks") for key in report if key.endswith("_tasks"))
        groups: dict[str, dict[str, Interval]] = {}
        for group, infix in (("all", ""), *((domain, f"{domain}_") for domain in domains)):
            keys = {model: [f"{model}_{infix}{end}" for end in ("accuracy", "low", "high")] for model in MODELS}
            values = {m: tuple(float(report[k]) for k in ks) for m, ks in keys.items() if all(k in report for k in ks)}
            if values:
                groups[group] = {model: (value[0], value[1], value[2]) for model, value in values.items()}
        return groups


MODELS = ("base", "tuned")


def funnel_section(run: Run) -> Section | None:
    """What became of the tasks and samples, and why some were dropped."""
    steps = run.funnel()
    if not steps:
        return None
    blocks: list[Block] = [Chart("From tasks to packed documents", bars(steps, "funnel"))]
    rows = [(stage, reason, number(value)) for stage, reason, value in run.rejections()]
    if rows:
        blocks.append(Table("Rejected, by stage and reason", ("stage", "reason", "records"), rows))
    return Section("Funnel", "Every record is kept or rejected with a reason.", blocks)


def samples_section(run: Run) -> Section | None:
    """Outcomes, pass rates and lengths of the samples."""
    counts = run.counts
    if not counts.outcomes:
        return None
    blocks: list[Block] = [Chart("Outcomes of the samples", bars(counts.outcomes.most_common(), "outcomes"))]
    if counts.reasons:
        blocks.append(Chart("Why the verifier passed no more", bars(counts.reasons.most_common(8), "reasons")))
    if counts.pass_rates:
        rates = {domain: rate_histogram(values) for domain, values in counts.pass_rates.items()}
        blocks.append(
            Chart("Pass rate of the tasks", columns(RATE_BINS, rates, "pass rates", "share of samples right"))
        )
    labels, lengths = length_histogram(counts.lengths)
    blocks.append(Chart("Length of the answers", columns(labels, lengths, "lengths", "output tokens, up to")))
    return Section("Samples", "What the teacher answered and how the verifier judged it.", blocks)


def training_section(run: Run) -> Section | None:
    """Loss over steps for every phase."""
    if not run.losses:
        return None
    charts = [
        Chart(f"Training loss, phase {phase}", lines({phase: points}, f"loss of {phase}", "optimizer step"))
        for phase, points in run.losses.items()
    ]
    return Section("Training", "Loss of each optimizer step.", charts)


def result_section(run: Run) -> Section | None:
    """Base against tuned on the held-out tasks."""
    groups = run.accuracies()
    if not groups:
        return None
    report = run.reports["evaluate"]
    rows = [
        (
            group,
            number(report["tasks" if group == "all" else f"{group}_tasks"]),
            *(percent(values.get(m)) for m in MODELS),
        )
        for group, values in groups.items()
    ]
    blocks: list[Block] = [
        Chart("Held-out accuracy with 95 % intervals", intervals(groups, "accuracy")),
        Table("", ("domain", "tasks", "base", "tuned"), rows),
    ]
    return Section("Result", f"Base and tuned model on the same held-out tasks. {paired(report)}", blocks)


def percent(interval: Interval | None) -> str:
    """An accuracy with its interval."""
    return "" if interval is None else "{:.1%} [{:.1%}, {:.1%}]".format(*interval)


def paired(report: Report) -> str:
    """The paired test in words."""
    if "paired_p_value" not in report:
        return ""
    text = f"Paired test: p = {number(report['paired_p_value'])}"
    if "only_tuned" in report and "only_base" in report:
        text += (
            f"; {report['only_tuned']} tasks right for the tuned model alone, {report['only_base']} for the base alone"
        )
    return text + "."


def overlap_section(run: Run) -> Section | None:
    """Whether a held-out prompt was trained on."""
    if run.overlap is None:
        return None
    rows = [
        ("distinct prompts trained on", number(run.overlap.trained)),
        ("distinct held-out prompts", number(run.overlap.heldout)),
        ("in both", number(run.overlap.both)),
    ]
    intro = "Prompts compared by hash after normalising, over the kept traces and the held-out tasks."
    return Section("Overlap", intro, [Table("", ("prompts", "count"), rows)])


def evidence_section(run: Run) -> Section | None:
    """Numbers of the real servers and engine, then all numbers of every stage."""
    if not run.reports:
        return None
    rows = [
        (name, key, number(report[key]))
        for name, report in run.reports.items()
        for key in EVIDENCE.get(name.split("/")[0], ())
        if key in report
    ]
    blocks: list[Block] = [Table("Servers and training engine", ("stage", "number", "value"), rows)] if rows else []
    for name, report in run.reports.items():
        numbers = [(key, number(value)) for key, value in report.items()]
        blocks.append(Table(f"All numbers of {name}", ("number", "value"), numbers, folded=True))
    return Section("Evidence", "What the servers counted and which engine trained.", blocks)


def traces_section(run: Run) -> Section | None:
    """A few kept and a few rejected conversations."""
    if not run.examples:
        return None
    talks = [Conversation(e.title, e.verdict, e.kept, e.messages) for e in run.examples]
    return Section("Traces", "A few that were kept, then one for each reason of rejection.", talks)


def places_section(run: Run) -> Section | None:
    """Where everything lies."""
    rows = [(name, str(path)) for name, path in run.inputs.items() if name != "tuned"]
    rows += [("tuned model", str(run.model))] if run.model else []
    rows += [("this page", f"{run.config.location}/index.html")]
    return Section("Where it lies", "The model is a Hugging Face folder.", [Table("", ("what", "path"), rows)])


SECTIONS = (
    funnel_section,
    result_section,
    samples_section,
    training_section,
    overlap_section,
    evidence_section,
    traces_section,
    places_section,
)


def tiles(run: Run) -> list[Tile]:
    """The few numbers to see first."""
    found = []
    if "tasks" in run.reports:
        heldout = run.number_of("tasks", "heldout")
        found.append(Tile("tasks", number(run.number_of("tasks", "tasks") or 0), f"{number(heldout or 0)} held out"))
    if (requested := run.number_of("generate", "requested")) is not None:
        found.append(Tile("samples", number(requested), f"{number(run.number_of('generate', 'reused') or 0)} reused"))
    if (kept := run.number_of("filter", "kept")) is not None:
        of_tasks = number(run.number_of("filter", "tasks_with_kept") or 0)
        found.append(Tile("kept traces", number(kept), f"of {of_tasks} tasks"))
    for model, (value, low, high) in run.accuracies().get("all", {}).items():
        found.append(Tile(f"{model} accuracy", f"{value:.1%}", f"95 %: {low:.1%} to {high:.1%}"))
    return found


def summary(run: Run) -> str:
    """The run on one screen of plain text."""
    text = [f"Warmstart, {run.inputs['reports'].name}", ""]
    text += [f"  {name:<24} {number(value):>6}" for name, value in run.funnel()]
    rejections = sorted(run.rejections(), key=lambda item: -item[2])
    text += [f"    {stage} rejected {number(count)}: {reason}" for stage, reason, count in rejections[:8]]
    for phase, points in run.losses.items():
        text.append(f"  trained {phase}: {len(points)} steps, loss {points[0][1]:.3f} to {points[-1][1]:.3f}")
    groups = run.accuracies()
    if groups:
        text += ["", f"  held-out accuracy (95 %)  {'base':<24} tuned"]
        for group, values in list(groups.items())[:8]:
            text.append(f"    {group:<22} " + " ".join(f"{percent(values.get(m)):<24}" for m in MODELS).rstrip())
        text.append(f"  {paired(run.reports['evaluate'])}")
    if run.overlap is not None:
        text.append(f"  prompts both trained on and held out: {run.overlap.both}")
    model = [f"  model   {run.model}"] if run.model else []
    return "\n".join([*text, "", *model, f"  report  {run.config.location}/index.html"]) + "\n"


def run(config: Config, inputs: Mapping[str, Path], output: Path) -> Report:
    """Write the page and the summary."""
    found = Run(config, inputs)
    sections = [section for make in SECTIONS if (section := make(found)) is not None]
    subtitle = f"Recipe {inputs['reports'].name}: from tasks to a fine-tuned checkpoint."
    page = render_page("Warmstart run report", subtitle, tiles(found), sections)
    text = summary(found)
    write_text(output / "index.html", page)
    write_text(output / "summary.txt", text)
    return {"sections": len(sections), "examples": len(found.examples), "page_bytes": len(page.encode())}

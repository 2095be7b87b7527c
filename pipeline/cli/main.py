"""`warmstart STAGE --config FILE --in NAME=PATH ... --out DIR --report FILE [--set key=value ...] [--limit N]`."""

import ast
import importlib
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType, ModuleType

from pipeline.cli.arguments import Arguments, parse_stage_arguments, stage_help
from pipeline.errors import UserError

STAGES_FOLDER = Path(__file__).resolve().parents[2] / "stages"
FLOW = (
    *("base", "tasks", "generate", "verify", "collect", "filter", "dedup", "decontaminate", "mix", "pack", "sft"),
    *("evaluate", "handoff", "publish", "report"),
)


def stage_names() -> list[str]:
    """The stages in the order of the flow, then any others by name."""
    found = {path.stem for path in STAGES_FOLDER.glob("*.py") if path.stem != "__init__"}
    return [name for name in FLOW if name in found] + sorted(found - set(FLOW))


def _first_line(stage: str) -> str:
    tree = ast.parse((STAGES_FOLDER / f"{stage}.py").read_text(encoding="utf-8"))
    return (ast.get_docstring(tree) or "").split("\n", 1)[0]


def general_help() -> str:
    """The text of `warmstart --help`."""
    lines = [
        "usage: warmstart STAGE --config FILE --in NAME=PATH ... --out DIR --report FILE",
        "",
        "Build verified reasoning data and the checkpoint an RL run starts from.",
        "`dvc repro` runs every stage in order; one stage is run by itself like this:",
        "",
        "  warmstart filter --config configs/demo/filter.yaml --in tasks=data/demo/tasks \\",
        "    --in samples=data/demo/generate --in verdicts=data/demo/verify --out /tmp/kept --report /tmp/kept.json",
        "",
        "stages, in the order of the flow (`warmstart STAGE --help` explains each with every config key):",
    ]
    lines += [f"  {name:<10} {_first_line(name)}" for name in stage_names()]
    lines += [
        "",
        "The environment variable WARMSTART_MACHINE names the machine file (configs/machines/, default local).",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 for a user error, 130 or 143 when stopped by a signal."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(general_help())
        return 0
    stage, *rest = arguments
    if stage not in stage_names():
        print(
            f"warmstart: there is no stage `{stage}`; the stages are: {', '.join(stage_names())}",
            file=sys.stderr,
        )
        return 1
    module = importlib.import_module(f"stages.{stage}")
    if any(word in ("-h", "--help") for word in rest):
        print(stage_help(stage, module))
        return 0
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _stop)
    try:
        return run_stage(stage, module, parse_stage_arguments(stage, rest))
    except UserError as error:
        print(f"warmstart {stage}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(
            f"warmstart {stage}: stopped; what finished is kept, run the same command to go on",
            file=sys.stderr,
        )
        return 130
    except OSError as error:
        if error.errno != 28:  # ENOSPC
            raise
        print(
            f"warmstart {stage}: the disk is full ({error.filename or 'no file named'}); free some space and run "
            "the same command again, what finished is kept",
            file=sys.stderr,
        )
        return 1


def _stop(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


def run_stage(stage: str, module: ModuleType, arguments: Arguments) -> int:
    """Check everything, run the stage in its work folder, then move output and report into place."""
    from pipeline.config import load_config
    from pipeline.shards import replace_folder, write_json
    from pipeline.work import open_work

    limit = () if arguments.limit is None else (f"limit={arguments.limit}",)
    config = load_config(module.Config, arguments.config, (*arguments.overrides, *limit))
    missing = [name for name in module.INPUTS if name not in arguments.inputs]
    if missing:
        raise UserError(f"needs {' '.join(f'--in {name}=PATH' for name in missing)}; see `warmstart {stage} --help`")
    unknown = [
        name for name in arguments.inputs if name not in {**module.INPUTS, **getattr(module, "OPTIONAL_INPUTS", {})}
    ]
    if unknown:
        raise UserError(f"--in {unknown[0]}=...: no such input; this stage reads {', '.join(module.INPUTS)}")
    started = time.monotonic()
    with_code = getattr(module, "CODE_IN_DIGEST", True)
    with open_work(stage, config, arguments.inputs, arguments.out, with_code) as work:
        report = dict(module.run(config, arguments.inputs, work.output))
        report["seconds"] = round(time.monotonic() - started, 1)
        replace_folder(work.output, arguments.out)
        write_json(arguments.report, report)
        shutil.rmtree(work.path, ignore_errors=True)
    print(summary(stage, arguments, report))
    return 0


def summary(stage: str, arguments: Arguments, report: dict[str, object]) -> str:
    """The last screen of a stage: its numbers, where they lie, and what comes next."""
    width = max((len(key) for key in report), default=0)
    lines = [f"  {key:<{width}}  {value}" for key, value in report.items()]
    names = stage_names()
    following = names[names.index(stage) + 1] if names.index(stage) + 1 < len(names) else None
    lines.append(f"  -> {arguments.out}, {arguments.report}" + (f"; next: warmstart {following}" if following else ""))
    return "\n".join([f"{stage}:", *lines])

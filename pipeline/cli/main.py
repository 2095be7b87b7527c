"""`warmstart STAGE --config FILE --in NAME=PATH ... --out DIR --report FILE [--set key=value ...] [--limit N]`.

Beside the stages stand the commands of `pipeline/cli/commands/`. Both are found by name and loaded only when run.
"""

import ast
import importlib
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType, ModuleType

from pipeline.cli.arguments import Arguments, command_parser, parse_stage_arguments, stage_help
from pipeline.errors import UserError, full_disk

STAGES_FOLDER = Path(__file__).resolve().parents[2] / "stages"
COMMANDS_FOLDER = Path(__file__).resolve().parent / "commands"
FLOW = (
    *("base", "tasks", "generate", "verify", "collect", "filter", "dedup", "decontaminate", "mix"),
    *("pack", "sft", "evaluate", "handoff", "publish", "report"),
)


def stage_names() -> list[str]:
    """The stages in the order of the flow, then any others by name."""
    found = {path.stem for path in STAGES_FOLDER.glob("*.py") if path.stem != "__init__"}
    return [name for name in FLOW if name in found] + sorted(found - set(FLOW))


def command_names() -> list[str]:
    """The commands beside the stages, by name; `audit_template.py` is `audit-template`."""
    return sorted(path.stem.replace("_", "-") for path in COMMANDS_FOLDER.glob("*.py") if path.stem != "__init__")


def _file_of(command: str) -> Path:
    return COMMANDS_FOLDER / f"{command.replace('-', '_')}.py"


def _first_line(module: Path) -> str:
    tree = ast.parse(module.read_text(encoding="utf-8"))
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
    width = max(map(len, (*stage_names(), *command_names()))) + 1
    lines += [f"  {name:<{width}} {_first_line(STAGES_FOLDER / f'{name}.py')}" for name in stage_names()]
    lines += ["", "commands (`warmstart COMMAND --help` explains each):"]
    lines += [f"  {name:<{width}} {_first_line(_file_of(name))}" for name in command_names()]
    lines += [
        "",
        "The environment variable WARMSTART_MACHINE names the machine file (configs/machines/, default local).",
    ]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command. Returns the exit code: 0, 1 for a user error, 128 + n when stopped by signal n."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(general_help())
        return 0
    name, *rest = arguments
    if name in stage_names():
        return _told(name, lambda: _run_stage_named(name, rest))
    if name in command_names():
        return _told(name, lambda: _run_command(name, rest))
    print(
        f"warmstart: there is no stage `{name}`; the stages are: {', '.join(stage_names())}; "
        f"the commands are: {', '.join(command_names())}",
        file=sys.stderr,
    )
    return 1


def _run_stage_named(stage: str, rest: Sequence[str]) -> int:
    module = importlib.import_module(f"stages.{stage}")
    if any(word in ("-h", "--help") for word in rest):
        print(stage_help(stage, module))
        return 0
    return run_stage(stage, module, parse_stage_arguments(stage, rest))


def _run_command(command: str, rest: Sequence[str]) -> int:
    module = importlib.import_module(f"pipeline.cli.commands.{_file_of(command).stem}")
    parser = command_parser(command, module)
    if any(word in ("-h", "--help") for word in rest):
        print(parser.format_help().rstrip())
        return 0
    try:
        code: int = module.run(parser.parse_args(rest))
        sys.stdout.flush()
    except BrokenPipeError:  # `warmstart peek ... | head`: the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _told(name: str, action: Callable[[], int]) -> int:
    """Run a stage or command, and tell in one screen what the user can mend; defects keep their traceback."""
    stopped_by = signal.SIGINT

    def stop(number: int, frame: FrameType | None) -> None:
        """Stop as Ctrl-C would: asyncio then ends its tasks in order, where an exception leaves their tracebacks."""
        nonlocal stopped_by
        stopped_by = signal.Signals(number)
        handler = signal.getsignal(signal.SIGINT)
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # A script's background job ignores Ctrl-C, and so do we; asyncio ends in order only where it can be caught.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # `nohup dvc repro` is meant to outlive its terminal
            signal.signal(number, stop)
    try:
        return action()
    except UserError as error:
        problem = str(error)
    except KeyboardInterrupt:
        print(f"warmstart {name}: stopped; what finished is kept, run the same command to go on", file=sys.stderr)
        return 128 + stopped_by
    except Exception as error:
        where = full_disk(error)
        if where is not None:
            problem = (
                f"the disk is full{f' ({where})' if where else ''}; free some space and run the same command again, "
                "what finished is kept"
            )
        elif isinstance(error, PermissionError) and error.filename:
            problem = f"{os.fsdecode(error.filename)}: permission denied; give yourself access, or name another path"
        else:
            raise
    print(f"warmstart {name}: {problem}", file=sys.stderr)
    return 1


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

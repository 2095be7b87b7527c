"""The machine around the environments: programs, memory, disk, devices."""

import os
import shutil
import sys
import tempfile
from pathlib import Path

from pipeline.config import load_machine
from pipeline.doctor.finding import Finding, output_of
from pipeline.errors import UserError

NEED_MEMORY_GB = 6.0
NEED_DISK_GB = 6.0
"""For the demo beside installed environments, by arithmetic: three models of 0.3 GB, the DVC cache's copies of them
where the disk can neither reflink nor hardlink, and two training checkpoints of 2 GB each while training runs."""


def probe_python() -> Finding:
    """The interpreter."""
    version = ".".join(map(str, sys.version_info[:3]))
    if (3, 11) <= sys.version_info < (3, 14):
        return Finding("ok", f"Python {version} at {sys.executable}")
    return Finding("gap", f"Python {version}; 3.11, 3.12 or 3.13 is needed", "make setup PYTHON=/path/to/python3.11")


def probe_sandbox() -> Finding:
    """Build a box and run a program in it; choosing one has looked for ways out of it first."""
    from pipeline.sandbox import BoxLimits
    from pipeline.sandbox.box import run_in
    from pipeline.sandbox.setup import INSTALL, box_setup, choose

    try:
        setup = box_setup() if _machine_loads() else choose(("A", "B", "C"))
        result = run_in(setup, setup.python_argv("print(6 * 7)"), b"", BoxLimits())
    except UserError as error:
        text, _, rest = str(error).partition(";")
        return Finding("gap", text, rest.strip() or "see the README on the sandbox")
    if result.stdout.strip() != b"42":
        return Finding(
            "gap", f"a boxed program did not run: {result.status}, {result.stderr.decode()[-200:]}", "make system"
        )
    tier = setup.tier
    if tier.name == "unsafe":
        return Finding("gap", "the sandbox is switched off: programs run with your rights", "switch it on again")
    text = f"tier {tier.name} ({', '.join(tier.mechanisms)}): a program ran in a box, and found no way out of it"
    text += "".join(f"; it lacks {lack}" for lack in tier.lacks)
    if setup.passed_over:
        return Finding("note", f"{text}; passed over {' | '.join(setup.passed_over)}", INSTALL)
    return Finding("ok", text)


def _machine_loads() -> bool:
    try:
        load_machine()
    except UserError:
        return False
    return True


def probe_compiler() -> Finding:
    """Compile and run one line of C++. The demo compiles nothing: DeepSpeed's own kernels are left out."""
    compiler = os.environ.get("CXX") or next(filter(None, map(shutil.which, ("g++", "c++", "clang++"))), None)
    remedy = "sudo apt-get install --yes g++"
    if compiler is None:
        return Finding("note", "no C++ compiler; only recipes with DeepSpeed's compiled optimizers need one", remedy)
    with tempfile.TemporaryDirectory() as folder:
        program = str(Path(folder) / "a.out")
        source = "#include <vector>\nint main() { return std::vector<int>{42}[0] - 42; }\n"
        code, said = output_of([compiler, "-x", "c++", "-", "-o", program], source)
        if code == 0:
            code, said = output_of([program])
    if code:
        return Finding("note", f"{compiler} does not compile a line of C++: {said}", remedy)
    return Finding("ok", f"{compiler} compiles C++")


def probe_git() -> Finding:
    """git, and a repository around this folder: DVC needs both."""
    if shutil.which("git") is None:
        return Finding("gap", "git is not installed; DVC needs it", "sudo apt-get install --yes git")
    code, said = output_of(["git", "rev-parse", "--show-toplevel"])
    if code:
        remedy = "git init && git add -A && git commit -m start   (or: dvc config core.no_scm true)"
        if "dubious ownership" in said:
            remedy = f"git config --global --add safe.directory {Path.cwd()}"
        return Finding("gap", f"{Path.cwd()} is no git repository for this user: {said.splitlines()[0]}", remedy)
    return Finding("ok", f"git repository {said}")


def probe_dvc() -> Finding:
    """DVC and the pipeline file."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        found = version("dvc")
    except PackageNotFoundError:
        return Finding("gap", f"DVC is not installed in {sys.prefix}", "make setup")
    if not Path("dvc.yaml").is_file() or not Path(".dvc").is_dir():
        return Finding("gap", f"{Path.cwd()} holds no dvc.yaml and .dvc", "run this in the root of the repository")
    return Finding("ok", f"DVC {found}")


def probe_machine_file() -> Finding:
    """The machine file, and whether the disk of the ledger can be written."""
    try:
        machine = load_machine()
    except UserError as error:
        return Finding("gap", str(error), "mend the file, or unset WARMSTART_MACHINE")
    folder = _existing(machine.ledger)
    if not os.access(folder, os.W_OK):
        return Finding("gap", f"ledger: {folder} cannot be written", "name another folder under `ledger`")
    name = os.environ.get("WARMSTART_MACHINE", "local")
    training = f"{machine.training.ranks} ranks on {machine.training.device}"
    return Finding("ok", f"{name}: {machine.workers} workers, {training}, vLLM on {machine.serving.device}")


def probe_gpu() -> Finding:
    """GPUs, where the machine file asks for them."""
    try:
        machine = load_machine()
    except UserError:
        return Finding("note", "not looked for: the machine file does not load")
    wanted = max(
        machine.serving.tensor_parallel if machine.serving.device == "cuda" else 0,
        machine.training.ranks if machine.training.device == "cuda" else 0,
    )
    tool = shutil.which("nvidia-smi")
    if tool is None:
        if wanted:
            return Finding(
                "gap", f"the machine file asks for {wanted} GPUs, nvidia-smi is not there", "set device: cpu"
            )
        return Finding("note", "none, and none is asked for")
    code, said = output_of([tool, "--query-gpu=name,memory.total", "--format=csv,noheader"])
    count = len(said.splitlines()) if code == 0 else 0
    if wanted > count and count < 3:  # only the last three lines are kept
        return Finding(
            "gap", f"the machine file asks for {wanted} GPUs, {count} found", "lower ranks or set device: cpu"
        )
    return Finding("ok" if count else "note", said.splitlines()[0] if count else f"nvidia-smi finds none: {said}")


def probe_memory() -> Finding:
    """Memory that programs can have now, also where a container limits it."""
    import psutil

    available = psutil.virtual_memory().available
    for name, used in (("memory.max", "memory.current"),):
        try:
            root = Path("/sys/fs/cgroup")
            available = min(available, int((root / name).read_text()) - int((root / used).read_text()))
        except (OSError, ValueError):
            continue
    found = available / 1e9
    if found < NEED_MEMORY_GB:
        return Finding(
            "gap",
            f"{found:.1f} GB free, the demo needs {NEED_MEMORY_GB:.0f}",
            "end other programs, or training.ranks: 1",
        )
    return Finding("ok", f"{found:.1f} GB free, {len(os.sched_getaffinity(0))} cores")


def probe_disk() -> Finding:
    """Free space where data, work files and temporary files go."""
    for folder in dict.fromkeys((_existing(Path("data")), _existing(Path(".work")), Path(tempfile.gettempdir()))):
        need = 0.5 if folder == Path(tempfile.gettempdir()) else NEED_DISK_GB
        free = shutil.disk_usage(folder).free / 1e9
        if free < need:
            return Finding(
                "gap",
                f"{folder.resolve()}: {free:.1f} GB free, {need:g} needed",
                "free space; see `warmstart clean`, `dvc gc -w`",
            )
    return Finding("ok", f"{shutil.disk_usage('.').free / 1e9:.0f} GB free, the demo needs {NEED_DISK_GB:.0f}")


def probe_slurm() -> Finding:
    """Slurm, needed only by cluster recipes."""
    if shutil.which("sinfo") is None:
        return Finding("note", "not here; only cluster recipes need it")
    code, said = output_of(["sinfo", "--noheader", "--format=%P %D nodes %t"])
    if code:
        return Finding("note", f"sinfo does not answer: {said}", "is slurmctld running?")
    return Finding("ok", said.replace("\n", "; ") or "no partitions")


def _existing(path: Path) -> Path:
    """The path, or the nearest folder above it that exists."""
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path

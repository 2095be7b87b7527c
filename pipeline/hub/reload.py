"""Load a set with `datasets.load_dataset`, as its card says, and tell what came: `python -m pipeline.hub.reload SPEC`.

A process of its own, so that the caches of `datasets` and `huggingface_hub` lie where they are told to before either is
imported, and its memory is given back.
"""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pipeline.errors import UserError
from pipeline.hub.rows import Digest
from pipeline.shards import write_json
from pipeline.work.guard import current_guard


def load_back(
    where: str, revision: str | None, streaming: bool, cache: Path, token: str | None = None
) -> dict[str, Any]:
    """Rows and sha256 of each split as `load_dataset(where, revision=...)` gives them; `token` only for a Hub.

    Raises UserError with the end of the log where loading fails.
    """
    cache.mkdir(parents=True, exist_ok=True)
    spec, result, log = cache / "spec.json", cache / "result.json", cache / "load.log"
    result.unlink(missing_ok=True)
    log.unlink(missing_ok=True)
    write_json(spec, {"path": where, "revision": revision, "streaming": streaming, "result": str(result.resolve())})
    hidden = {"HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_DATASETS_CACHE", "HF_TOKEN_PATH", "HUGGING_FACE_HUB_TOKEN"}
    environment = {key: value for key, value in os.environ.items() if key not in hidden}
    environment |= {"HF_HOME": str(cache.resolve()), "HF_HUB_DISABLE_TELEMETRY": "1", "PYTHONPATH": str(_root())}
    environment |= {"HF_TOKEN": token} if token else {"HF_HUB_OFFLINE": "1"}
    argv = [sys.executable, "-m", "pipeline.hub.reload", str(spec.resolve())]
    process = current_guard().popen(argv, env=environment, log=log)
    try:
        code = process.process.wait()
    finally:
        process.stop()
    if code != 0 or not result.exists():
        tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-15:])
        raise UserError(f"load_dataset({where!r}, revision={revision!r}) failed, so nothing was published:\n{tail}")
    found: dict[str, Any] = json.loads(result.read_text(encoding="utf-8"))
    return found


def _root() -> Path:
    return Path(__file__).resolve().parents[2]


def summarise_splits(path: str, revision: str | None, streaming: bool) -> dict[str, Any]:
    """Load and digest every split."""
    from datasets import load_dataset

    loaded: Mapping[str, Any] = load_dataset(path, revision=revision, streaming=streaming)
    splits = {}
    for name, rows in loaded.items():
        digest = Digest()
        for row in rows:
            digest.add(row)
        splits[str(name)] = {"rows": digest.rows, "sha256": digest.sha256}
    return splits


if __name__ == "__main__":
    wanted = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    write_json(Path(wanted["result"]), summarise_splits(wanted["path"], wanted["revision"], wanted["streaming"]))

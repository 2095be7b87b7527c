"""The same witnesses for an ordinary user: the containment tests run once more under a uid that owns nothing here."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# Own mounts show the repository, the interpreter and its packages where the user may read them; /tmp stays shared.
STAGE = """
set -e
cd "$1"; shift
for name in repository python; do mkdir -p $name; mount --bind "$1" $name; shift; done
count=0
for packages; do count=$((count + 1)); mkdir -p p$count; mount --bind "$packages" p$count; path=$path:$PWD/p$count; done
mkdir -m 777 home
export PYTHONPATH=$PWD/repository$path HOME=$PWD/home USER=tester PYTHONDONTWRITEBYTECODE=1
export PYTEST_DEBUG_TEMPROOT=$PWD/home
cd repository
exec setpriv --reuid 4711 --regid 4711 --clear-groups ../python/bin/python3 -m pytest -q -p no:cacheprovider \
    tests/pipeline/test_sandbox_containment.py tests/pipeline/test_sandbox_limits.py \
    -k "containment or sampled and (memory_of_all or fork_bomb_is)"
"""


@pytest.mark.skipif(
    os.geteuid() != 0, reason="only root can become an ordinary user; for others every test here is one"
)
@pytest.mark.skipif(shutil.which("setpriv") is None, reason="setpriv is not installed")
def test_the_witnesses_hold_for_an_ordinary_user(tmp_path: Path):
    stage = Path("/tmp") / f"warmstart-user-{os.getpid()}"
    stage.mkdir(mode=0o755)
    packages = sorted({path for path in sys.path if path.endswith("site-packages")})
    try:
        line = ["unshare", "--mount", "sh", "-c", STAGE, "sh", str(stage), str(ROOT), sys.base_prefix, *packages]
        done = subprocess.run(line, capture_output=True, text=True, check=False)
    finally:
        shutil.rmtree(stage, ignore_errors=True)
    summary = done.stdout.strip().splitlines()[-1:]
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert summary and " passed" in summary[0] and "failed" not in summary[0]

"""A private copy of the repository in which DVC and the stages run for real."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]


class Project:
    """A copy of the tracked files with the environments linked in."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        for name in subprocess.run(listed, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines():
            if not name.endswith("dvc.lock") and ((ROOT / name).exists() or (ROOT / name).is_symlink()):
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
        for name in (".venv", ".venv-vllm"):
            (folder / name).symlink_to(ROOT / name)
        identity = ["-c", "user.name=test", "-c", "user.email=test@localhost"]
        subprocess.run(["git", "init", "-q"], cwd=folder, check=True)
        subprocess.run(["git", "add", "-A"], cwd=folder, check=True)
        subprocess.run(["git", *identity, "commit", "-qm", "copy"], cwd=folder, check=True)

    def command(self, *words: str) -> list[str]:
        """A DVC command of the linked environment."""
        return [str(ROOT / ".venv/bin/python"), "-m", "dvc", *words]

    def start(self, *words: str) -> "subprocess.Popen[bytes]":
        """Start DVC in a session of its own, with its output in dvc.log."""
        with (self.folder / "dvc.log").open("ab") as log:
            return subprocess.Popen(
                self.command(*words), cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )

    def dvc(self, *words: str) -> str:
        """Run DVC to its end; returns what it printed, fails the test with it on an error."""
        done = subprocess.run(self.command(*words), cwd=self.folder, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"dvc {' '.join(words)}\n{done.stdout[-6000:]}\n{done.stderr[-6000:]}"
        return done.stdout + done.stderr

    def report(self, name: str, recipe: str = "smoke") -> dict:
        """The numbers of one stage."""
        return json.loads((self.folder / "reports" / recipe / f"{name}.json").read_text())

    def data(self, name: str, recipe: str = "smoke") -> Path:
        """The output folder of one stage."""
        return self.folder / "data" / recipe / name

    def processes(self) -> list[psutil.Process]:
        """Live processes that work inside this copy."""
        found = []
        for process in psutil.process_iter():
            try:
                inside = process.cwd().startswith(str(self.folder)) and process.pid != os.getpid()
                if inside and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def wait_until_empty(self, limit_s: float = 60) -> list[psutil.Process]:
        """Wait for the guard to end everything; returns what is left after the limit."""
        deadline = time.monotonic() + limit_s
        while (left := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.2)
        return left

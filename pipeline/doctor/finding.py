"""What a probe found."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

PROBE_TIMEOUT_S = 8.0
"""Time for one program that a probe starts: the whole examination stays below ten seconds."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`ok`; `gap`: the demo needs it and it is not there; `note`: only some recipes need it."""

    status: Literal["ok", "gap", "note"]
    text: str
    remedy: str = ""


def output_of(command: Sequence[str], stdin: str = "") -> tuple[int, str]:
    """Exit code and last lines of a program; 124 when it took too long."""
    try:
        done = subprocess.run(
            list(command), input=stdin, capture_output=True, text=True, timeout=PROBE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return 124, f"no answer within {PROBE_TIMEOUT_S:.0f} s"
    except OSError as error:
        return 127, str(error)
    return done.returncode, "\n".join((done.stdout + done.stderr).strip().splitlines()[-3:])

"""Try what this machine can run, and print each gap with its remedy; takes at most 10 seconds.

Every probe does a little of the real thing: a program runs in a sandbox box, compiled parts of torch and vLLM are
loaded, a line of C++ is compiled. Exit code 1 if something that the demo needs is missing.

    warmstart doctor
"""

import argparse
import threading
import time

from pipeline.cli.text import escaped

TOTAL_S = 9.5
MARKS = {"ok": "ok", "gap": "MISSING", "note": "-"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """None."""


def run(arguments: argparse.Namespace) -> int:
    """Run all probes side by side and print what each found."""
    from pipeline.doctor import PROBES, Finding

    found: dict[str, Finding] = {}

    def probe(name: str) -> None:
        try:
            found[name] = PROBES[name]()
        except Exception as error:  # noqa: BLE001 - one broken probe must not hide what the others find
            found[name] = Finding("gap", f"the probe itself failed: {type(error).__name__}: {error}")

    deadline = time.monotonic() + TOTAL_S
    threads = [threading.Thread(target=probe, args=(name,), daemon=True) for name in PROBES]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    missing = 0
    for name in PROBES:
        result = found.get(name, Finding("note", "no answer within 9 s: the machine is busy; run it again"))
        missing += result.status == "gap"
        print(f"{MARKS[result.status]:<8} {name:<10} {escaped(result.text)}")
        if result.remedy and result.status != "ok":
            print(f"{'':<19} -> {escaped(result.remedy)}")
    print(f"\n{missing} of {len(PROBES)} missing for the demo" if missing else "\nready: make demo")
    return 1 if missing else 0

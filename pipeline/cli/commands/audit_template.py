"""Check what a model's chat template does to conversations, before anything is trained on it.

MODEL is a folder with a tokenizer, its chat template and, for the tokens that end a turn, generation_config.json.
Prints what `pack` would train of sample conversations, between [ and ] or in colour, and one line a rule. Exit
code 1 if a rule fails.

    warmstart audit-template data/demo/base
    warmstart audit-template ~/models/GLM-4.5-Air-Base --samples 0
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.cli.text import escaped

if TYPE_CHECKING:
    from pipeline.chat.audit import Finding, Masked
    from pipeline.chat.template import ChatFormat


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which model, and how much to show."""
    parser.add_argument("model", metavar="MODEL", type=Path, help="a model's folder; no weights are read")
    parser.add_argument("--samples", metavar="N", type=int, default=9, help="sample conversations to show (default 9)")


def run(arguments: argparse.Namespace) -> int:
    """Print masks and findings. Raises UserError for a folder without tokenizer, template or stop token."""
    from pipeline.chat.audit import audit, mask_samples
    from pipeline.chat.template import load_chat_format

    chat = load_chat_format(arguments.model)
    samples = mask_samples(chat)
    _show_samples(chat, samples[: max(0, arguments.samples)])
    findings = audit(chat, samples)
    _show_findings(findings)
    failed = sum(finding.level == "fail" for finding in findings)
    print(f"{arguments.model}: " + (f"{failed} of {len(findings)} rules fail" if failed else "fit to be trained on"))
    return 1 if failed else 0


def _show_samples(chat: "ChatFormat", samples: Sequence["Masked"]) -> None:
    from rich.console import Console
    from rich.text import Text

    from pipeline.chat.audit import trained_runs

    coloured = sys.stdout.isatty()
    console = Console(highlight=False, soft_wrap=True)
    for sample in samples:
        print(f"{sample.name}:" + (f" refused, {escaped(sample.refused)}" if sample.refused else ""))
        for document in sample.documents:
            runs = [(escaped(text), trained) for text, trained in trained_runs(chat, document)]
            if coloured:
                console.print(Text("  ").join([Text(text, style="green" if on else "dim") for text, on in runs]))
            else:
                print("  " + "".join(f"[{text}]" if trained else text for text, trained in runs))
        print()


def _show_findings(findings: Sequence["Finding"]) -> None:
    width = max(len(finding.rule) for finding in findings)
    for finding in findings:
        print(f"  {finding.level:<4}  {finding.rule:<{width}}  {escaped(finding.said)}")

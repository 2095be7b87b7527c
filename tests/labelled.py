"""Labelled sets carried in tests/data: rows made for this project, compressed."""

import json
import lzma
from pathlib import Path

DATA = Path(__file__).parent / "data"


def read_labelled(name):
    """The rows of a compressed JSONL file."""
    return [json.loads(line) for line in lzma.open(DATA / f"{name}.jsonl.xz", "rt", encoding="utf-8")]

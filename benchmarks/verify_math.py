"""Claim: the math verifier accepts no wrong answer of the labelled set and refuses at most 1 % of the right ones, where
no convention is needed; hostile answers end within the limit + 0.5 s and cost no other verdict.

Peer: math-verify 0.9 as it comes (`parse` and `verify` with their defaults), each pair in a process with a time limit.

    python -m benchmarks.verify_math [--public FILE]

`--public`: rows of the same fields that others own; their figures carry the prefix `public_`.
"""

import argparse
import functools
import json
import lzma
import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pipeline.verify import Item, Judgement, Limits, judge_once

ROWS = Path(__file__).resolve().parents[1] / "tests/data/math_equivalence.jsonl.xz"
CPU_S = 2
"""CPU and wall seconds that a hostile answer may take."""
TRIES = 3
"""A hostile answer that took longer is tried again, and the fastest counts: other programs only ever add to it."""
PEER_S = 10
"""Wall seconds of a pair judged by the peer; its own limit of 5 s comes first."""


def boxed(text: str) -> str:
    """A final answer in its box."""
    return rf"\boxed{{{text}}}"


HOSTILE = {
    "tower": boxed("9^{9^{9}}"),
    "tall tower": boxed("9^{9^{9^{9^{9}}}}"),
    "power": boxed("2^{10^9}"),
    "power of a power": boxed("((2^{1000})^{1000})^{1000}"),
    "negative power": boxed("3^{-10^9}+1"),
    "sum": boxed(r"\sum_{k=1}^{10^9} k^k"),
    "sum of sums": boxed(r"\sum_{k=1}^{10^5}\sum_{j=1}^{10^5} \frac{1}{k+j}"),
    "product": boxed(r"\prod_{k=1}^{10^7} (k^2+1)"),
    "binomial": boxed(r"\binom{10^9}{5\cdot 10^8}"),
    "factorial": boxed("(10^8)!"),
    "factorial of a factorial": boxed("(9!)!"),
    "expansion": boxed("(x+y+z+1)^{5000}-x^{5000}"),
    "roots": boxed("+".join(rf"\sqrt{{{n}}}" for n in range(2, 150))),
    "nested roots": boxed(r"\sqrt{2+" * 35 + "1" + "}" * 35),
    "sine of a tower": boxed(r"\sin(10^{10^7})"),
    "a megabyte of digits": boxed("9" * 10**6),
    "a megabyte of words": "The answer is " + "seven " * 170_000,
    "a megabyte of braces": boxed("{" * 500_000 + "}" * 500_000),
    "a megabyte of boxes": r"\boxed{" * 150_000,
    "a megabyte of dollars": "The answer is " + "$" * 10**6,
    "a megabyte of answers": "answer " * 150_000,
    "deep brackets": boxed("(" * 900 + "1" + ")" * 900),
    "deep fractions": boxed(r"\frac{1}{1+" * 120 + "1" + "}" * 120),
    "deep signs": boxed("-" * 1900 + "1"),
    "plus-minus": boxed(r"\pm 1 " * 300),
    "commas": boxed("1," * 950),
    "bars": boxed("|" * 1900),
    "open braces": boxed(r"\{" * 600),
    "words": boxed("ab " * 600 + "!"),
    "digits and spaces": boxed("1 " * 900 + "?"),
}


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Rows of a JSONL file, compressed or not."""
    opener = lzma.open if path.suffix == ".xz" else open
    with opener(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def judge_rows(rows: Sequence[dict[str, Any]]) -> list[Judgement]:
    """Verdicts of the verifier under its default policies."""
    items = [Item(row["id"], "math", row["prediction"], "complete", {"answer": row["gold"]}) for row in rows]
    return judge_once(items, Limits())


def accepted_by_peer(pair: tuple[str, str]) -> bool:
    """Whether math-verify takes a prediction for right, with the defaults of its functions."""
    import logging

    from math_verify import parse, verify

    logging.disable(logging.ERROR)
    gold, prediction = pair
    return bool(verify(parse(gold), parse(prediction)))


def judge_by_peer(rows: Sequence[dict[str, Any]]) -> list[bool]:
    """What the peer accepts; a pair whose process ends or takes too long is not accepted."""
    from pebble import ProcessPool

    context = multiprocessing.get_context("forkserver")
    found = []
    with ProcessPool(max_workers=1, context=context) as pool:
        for row in rows:
            try:
                pair = (row["gold"], row["prediction"])
                found.append(pool.schedule(accepted_by_peer, args=(pair,), timeout=PEER_S).result())
            except Exception:  # noqa: BLE001 - a timeout, a dead process or an error of the library
                found.append(False)
    return found


def rates(rows: Iterable[dict[str, Any]], accepted: Iterable[bool]) -> dict[str, float]:
    """False accepts, and false rejects in percent of the right answers."""
    pairs = list(zip(rows, accepted, strict=True))
    right = [taken for row, taken in pairs if row["expected"]]
    return {
        "false_accepts": sum(taken and not row["expected"] for row, taken in pairs),
        "false_rejects_pct": round(100 * right.count(False) / max(len(right), 1), 2),
    }


def table(rows: Sequence[dict[str, Any]], ours: Sequence[bool], peer: Sequence[bool]) -> list[str]:
    """Errors by type of the clear rows, of this verifier and of the peer."""
    counts: dict[str, Counter[str]] = {}
    for row, taken, peer_taken in zip(rows, ours, peer, strict=True):
        count = counts.setdefault(row["type"], Counter())
        count["right" if row["expected"] else "wrong"] += 1
        for name, verdict in (("", taken), ("peer ", peer_taken)):
            if verdict != row["expected"]:
                count[name + ("false accepts" if verdict else "false rejects")] += 1
    heads = ("right", "wrong", "false accepts", "false rejects", "peer false accepts", "peer false rejects")
    lines = [f"{'type':28}" + "".join(f"{head:>20}" for head in heads)]
    return lines + [f"{kind:28}" + "".join(f"{counts[kind][head]:20}" for head in heads) for kind in sorted(counts)]


def conventions(rows: Sequence[dict[str, Any]], judgements: Sequence[Judgement]) -> list[str]:
    """Agreement with the label by convention, without the rows whose strings do not decide it."""
    counts: dict[str, Counter[str]] = {}
    for row, judgement in zip(rows, judgements, strict=True):
        count = counts.setdefault(row["policy"], Counter())
        if row["judged"] is None or row["judged"] != row["expected"]:
            count["left out"] += 1
        else:
            count["agree" if (judgement.verdict == "pass") == row["expected"] else "differ"] += 1
    heads = ("agree", "differ", "left out")
    lines = [f"{'convention':28}" + "".join(f"{head:>10}" for head in heads)]
    return lines + [f"{name:28}" + "".join(f"{counts[name][head]:10}" for head in heads) for name in sorted(counts)]


def measure(rows: Sequence[dict[str, Any]], prefix: str) -> dict[str, float]:
    """Figures of one labelled set; prints its tables."""
    judgements = judge_rows(rows)
    is_clear = [row["policy"] == "clear" for row in rows]
    clear = [row for row, keep in zip(rows, is_clear, strict=True) if keep]
    verdicts = [judgement.verdict for judgement, keep in zip(judgements, is_clear, strict=True) if keep]
    ours, peer = [verdict == "pass" for verdict in verdicts], judge_by_peer(clear)
    print("\n".join([f"\n{prefix or 'own_'}rows that need no convention", *table(clear, ours, peer)]))
    others = [(row, found) for row, found, keep in zip(rows, judgements, is_clear, strict=True) if not keep]
    print("\n".join([f"\n{prefix or 'own_'}rows that need one", *conventions(*zip(*others, strict=True))]))
    figures = {
        **rates(clear, ours),
        "unknown": sum(v == "unknown" for v in verdicts),
        **{f"baseline_{name}": value for name, value in rates(clear, peer).items()},
        "clear_rows": len(clear),
        "rows": len(rows),
    }
    return {prefix + name: value for name, value in figures.items()}


def measure_hostile() -> dict[str, float]:
    """Seconds beyond the limit of the slowest hostile answer, and verdicts of its neighbours that were lost."""
    limits = Limits.model_validate({"math": {"cpu_s": CPU_S, "wall_s": CPU_S}})
    item = functools.partial(Item, "k", "math", outcome="complete")
    right = item(answer=r"\boxed{\sqrt{8}}", reference={"answer": r"2\sqrt{2}"})
    wrong = item(answer=r"\boxed{\sqrt{8}}", reference={"answer": r"3\sqrt{2}"})
    judge_once([right], limits)  # the server of processes starts once
    over, lost = [], 0
    for name, answer in HOSTILE.items():
        hostile = item(answer=answer, reference={"answer": r"\sqrt{5}"})
        tries: list[float] = []
        while not tries or (min(tries) > CPU_S + 0.5 and len(tries) < TRIES):
            started = time.perf_counter()
            [alone] = judge_once([hostile], limits)
            tries.append(time.perf_counter() - started)
        over.append(min(tries) - CPU_S)
        before, among, after = judge_once([right, hostile, wrong], limits)
        lost += (before.verdict, after.verdict) != ("pass", "fail")
        print(
            f"hostile {name:26}{over[-1] + CPU_S:8.2f} s  {alone.verdict} {alone.reason}, among others {among.reason}"
        )
        assert "pass" not in (alone.verdict, among.verdict)
    return {
        "hostile": len(HOSTILE),
        "hostile_over_limit_s": round(max(0.0, *over), 3),
        "hostile_lost_verdicts": lost,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--public", type=Path, metavar="FILE", help="labelled rows of others, JSONL")
    arguments = parser.parse_args()
    figures = measure(read_rows(ROWS), "")
    if arguments.public:
        figures |= measure(read_rows(arguments.public), "public_")
    print()
    figures |= measure_hostile()
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

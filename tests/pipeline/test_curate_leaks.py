"""Items are found wherever they stand; templates, formulas and neighbours of an item are not flagged."""

from collections import Counter

import pytest

from pipeline.curate.leaks import Benchmark, Item, Rules, grams_of, shared_by_items, tokens_text
from tests.labelled import read_labelled

RULES = Rules(gram=8, coverage=0.7, answer_coverage=0.35)
ITEMS = {
    "sum": "State the final answer to the following arithmetic problem: 7 + 8 =",
    "product": "Calculate 8 * 3.",
    "story": "In the harbour of Ostrava a pilot counts nine gulls and forgets the tenth one. Which bird is missing?",
    "code": "Write a Python function `is_odd(n)` that returns True if n is odd and False otherwise.",
    "tiny": "Why?",
}


@pytest.fixture(scope="module")
def benchmark():
    return Benchmark([Item(name, f"p-{name}", tokens_text(text)) for name, text in ITEMS.items()], RULES)


def found(benchmark, text, whole=True):
    match = benchmark.match(text, whole=whole)
    return match and match.item_id


LEAKS = [
    (ITEMS["sum"], "sum"),
    (f"Please help me. {ITEMS['sum']}\nThank you!", "sum"),
    ("First: calculate 8*3. Then rest.", "product"),
    (f"I once read this: {ITEMS['story']} I never knew.", "story"),
    (ITEMS["story"].replace("counts", "countss").replace("harbour", "harbor"), "story"),
    (ITEMS["code"].upper(), "code"),
    ("why", "tiny"),
]
CLEAN = [
    "State the final answer to the following arithmetic problem: 7 + 9 =",
    "State the final answer to the following arithmetic problem: 7 - 8 =",
    "State the final answer to the following arithmetic problem: 7 + 8 + 9 =",
    "Calculate 8 * 30.",
    "Calculate 8 * 3 + 1.",
    "To calculate 8 * 3 we add.",
    "Write a Python function `is_even(n)` that returns True if n is even and False otherwise.",
    "Tell me why? I do not know.",
    "",
]


@pytest.mark.parametrize(("text", "item"), LEAKS)
def test_items_are_found_verbatim_embedded_and_edited(benchmark, text, item):
    assert found(benchmark, text) == item


@pytest.mark.parametrize("text", CLEAN)
def test_neighbours_of_items_are_not_flagged(benchmark, text):
    assert found(benchmark, text) is None


def test_items_that_cannot_be_checked_in_every_way_are_named(benchmark):
    checks = Benchmark([*benchmark.items, Item("none", "p", ())], RULES).checks()
    assert checks == {"verbatim_only": ["product"], "whole_prompt_only": ["tiny"], "uncheckable": ["none"]}


def test_labelled_leaks_are_found_and_decoys_stay():
    rows = read_labelled("contamination")
    items = [
        Item(item["id"], item["id"], tokens_text(item["question"]), tokens_text(item["answer"]))
        for item in read_labelled("contamination_items")
    ]
    benchmark = Benchmark(items, RULES)
    grams = benchmark.grams()
    seen = Counter()
    for row in rows:
        texts = (tokens_text(row["prompt"]), tokens_text(row["response"]))
        seen.update({gram for text in texts for gram in grams_of(text, 8) if gram in grams})
    common = {gram for gram, count in seen.items() if count > max(5, 0.01 * len(rows))}
    benchmark.set_common(common | shared_by_items(items, 8, 3))
    hits, total = Counter(), Counter()
    for row in rows:
        match = benchmark.match(row["prompt"], row["response"], whole=True) or benchmark.match(
            row["response"], row["response"]
        )
        total[row["type"]] += 1
        hits[row["type"]] += match is not None and (not row["leak"] or match.item_id in row["items"])
    for kind in total:
        if kind.startswith(("verbatim", "short-verbatim", "short-embedded", "core")):
            assert hits[kind] == total[kind], kind
    assert hits["edit-10"] >= 0.95 * total["edit-10"]
    stay = {row["type"] for row in rows if not row["leak"]}
    assert sum(hits[kind] for kind in stay - {"clean"}) <= 0.01 * sum(total[kind] for kind in stay)
    assert hits["clean"] == 0

"""Constraints on form: hand-labelled answers of each type, counts of built texts, and references that are none."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.verify import Item, Limits, judge_items
from pipeline.verify.constraints import count_sentences, count_words, paragraphs

SOURCE = Path(__file__).resolve().parents[2] / "sources/demo/instruction.jsonl"

# (constraint, answers that meet it, answers that do not)
LABELLED = [
    ({"type": "max_words", "n": 3}, ["One two three.", "one - two -- three", "so"], ["one two three four", "a b c d"]),
    ({"type": "min_words", "n": 3}, ["One two three.", "it is 7 o'clock"], ["one - two", "no"]),
    ({"type": "contains", "text": "Paris"}, ["It is Paris.", "PARIS", "paris, France"], ["It is Rome.", "Par is"]),
    (
        {"type": "starts_with", "text": "Yes"},
        ["Yes, it is.", "  yes", "YES!"],
        ["Yesterday it was.", "Well, yes", '"Yes"', "Ye s"],
    ),
    ({"type": "starts_with", "text": "Did you know"}, ["Did you know that bees dance?"], ["Do you know bees?"]),
    ({"type": "ends_with", "text": "wishes"}, ["Best wishes", "best WISHES \n"], ["Best wishes.", "unwishes", "Bye"]),
    ({"type": "ends_with", "text": "?"}, ["Who is it?", "Why ?\n"], ["Who is it.", "? yes"]),
    ({"type": "all_lowercase"}, ["apple, pear", "naïve café 12"], ["Apple", "a\u01c5b", "éÉ", "123"]),
    (
        {"type": "no_commas"},
        ["Dogs bark.", "one; two"],
        ["Dogs, cats", "1,000", "\u732b\uff0c\u72ac", "a\u060cb", "\u732b\u3001\u72ac"],
    ),
    (
        {"type": "forbidden_words", "words": ["cat", "animal"]},
        ["A small pet that says meow.", "concatenate", "animals"],
        ["The cat.", "CAT!", "a wild-cat", "An\nanimal"],
    ),
    (
        {"type": "num_sentences", "n": 1},
        [
            "Dogs bark.",
            "Dogs bark",
            "It costs 3.50 dollars at www.shop.com today.",
            "Mr. Smith met Dr. J. Brown at 5 p.m. in town.",
            'He said "hello!"',
            "**Dogs bark.**",
            "Really?!",
            "Dogs bark\nand run.",
            "1. Dogs bark.",
        ],
        [
            "Dogs bark. Cats purr.",
            "Dogs! Cats!",
            "Dogs\n\nCats bark.",
            '"Go." He went.',
            "- one\n- two",
            "Is it I? It is.",
        ],
    ),
    ({"type": "num_sentences", "n": 2, "relation": "at_most"}, ["A b.", "A b. C d."], ["A b. C d. E f."]),
    ({"type": "num_sentences", "n": 2, "relation": "at_least"}, ["A b. C d.", "A b. C d. E f."], ["A b."]),
    (
        {"type": "num_bullets", "n": 2},
        ["- a\n- b", "Here:\n* a\n* b", "  • a\n  + b", "- a\ntext\n- b"],
        ["- a", "- a\n- b\n- c", "1. a\n2. b", "**a**\n**b**", "a - b - c", "-a\n-b", "- a\n- "],
    ),
    ({"type": "num_bullets", "n": 2, "relation": "at_least"}, ["- a\n- b\n- c"], ["- a"]),
    (
        {"type": "num_paragraphs", "n": 2},
        ["One.\n\nTwo.", "One.\nstill one.\n \n\n\nTwo.\n\n"],
        ["One.", "One.\nTwo.", "One.\n\nTwo.\n\nThree."],
    ),
    (
        {"type": "json_object", "keys": ["name"]},
        ['{"name": "Ann", "age": 3}', ' {"name": null}\n', '```json\n{"name": "Ann"}\n```', '```\n{"name": 1}\n```'],
        [
            '{"age": 3}',
            '["name"]',
            '"name"',
            "{name: 1}",
            'Sure: {"name": 1}',
            '{"name": NaN}',
            '```json\n{"name": 1}',
            "[" * 100_000 + "1",
            '{"name": ' + "9" * 5000 + "}",
        ],
    ),
    ({"type": "json_object"}, ['{"a": []}'], ["[1]", "1", "none"]),
]


def judge(answer, *constraints):
    reference = {"constraints": list(constraints)}
    return judge_items([Item("k", "instruction", answer, "complete", reference)], Limits())[0]


@pytest.mark.parametrize(
    ("constraint", "right", "wrong"), LABELLED, ids=lambda v: v.get("type", "") if isinstance(v, dict) else ""
)
def test_hand_labelled_answers(constraint, right, wrong):
    for answer in right:
        found = judge(answer, constraint)
        assert (found.verdict, found.score, found.reason) == ("pass", 1.0, "constraints_met"), answer
    for answer in wrong:
        found = judge(answer, constraint)
        assert (found.verdict, found.score) == ("fail", 0.0), answer
        assert found.evidence["broken"][0]["type"] == constraint["type"], answer


def test_the_score_is_the_fraction_that_holds_and_only_all_pass():
    found = judge("Dogs bark, and run.", {"type": "num_sentences", "n": 1}, {"type": "no_commas"})
    assert (found.verdict, found.score, found.reason) == ("fail", 0.5, "constraint_broken")
    assert found.evidence == {"met": 1, "constraints": 2, "broken": [{"type": "no_commas", "found": 1}]}


@pytest.mark.parametrize("answer", [".", "- - -", "\n", "<think>Dogs bark.", "<think>Dogs bark.</think>"])
def test_an_answer_without_a_word_meets_nothing(answer):
    assert judge(answer, {"type": "no_commas"}).reason == "no_answer"


def test_thinking_is_not_the_answer():
    assert judge("<think>First, second,</think>Dogs bark.", {"type": "no_commas"}).verdict == "pass"


@pytest.mark.parametrize(
    "constraints",
    [
        None,
        [],
        "no_commas",
        [{}],
        [{"type": "rhymes"}],
        [{"type": "max_words"}],
        [{"type": "max_words", "n": 0}],
        [{"type": "max_words", "n": "3"}],
        [{"type": "max_words", "n": 3, "m": 4}],
        [{"type": "contains", "text": " "}],
        [{"type": "forbidden_words", "words": []}],
        [{"type": "forbidden_words", "words": ["two words"]}],
        [{"type": "num_sentences", "n": 1, "relation": "about"}],
        [{"type": "no_commas"}, {"type": "rhymes"}],
    ],
)
def test_a_reference_that_is_none_is_unknown(constraints):
    item = Item("k", "instruction", "Dogs bark.", "complete", {"constraints": constraints})
    found = judge_items([item, Item("k", "instruction", "Dogs.", "complete", None)], Limits())
    assert [(f.verdict, f.score, f.reason) for f in found] == [("unknown", None, "bad_reference")] * 2


WORD = st.text("abcdefgh", min_size=2, max_size=8)
SENTENCE = st.tuples(st.lists(WORD, min_size=1, max_size=6), st.sampled_from([".", "!", "?", "?!", "..."]))


@given(st.lists(st.lists(SENTENCE, min_size=1, max_size=4), min_size=1, max_size=4))
def test_counts_of_a_built_text_are_those_it_was_built_from(built):
    text = "\n\n".join(" ".join(" ".join(words) + mark for words, mark in sentences) for sentences in built)
    assert len(paragraphs(text)) == len(built)
    known = {"mr", "mrs", "ms", "dr", "prof", "st", "vs", "etc", "jr"}
    if not known & {words[-1] for sentences in built for words, _ in sentences}:
        assert count_sentences(text) == sum(map(len, built))
    assert count_words(text) == sum(len(words) for sentences in built for words, _ in sentences)


@given(st.text())
def test_any_text_is_judged_and_the_same_text_the_same(text):
    constraints = [dict(constraint) for constraint, _, _ in LABELLED]
    found = judge(text, *constraints)
    assert found == judge(text, *constraints)
    assert found.verdict in ("pass", "fail")
    json.dumps(found.evidence).encode()


def test_the_demo_asks_sixty_different_things_that_can_be_met():
    rows = [json.loads(line) for line in SOURCE.read_text().splitlines()]
    assert len({row["prompt"] for row in rows}) == len(rows) == 60
    for row in rows:
        assert judge("Dogs bark.", *row["constraints"]).verdict in ("pass", "fail"), row
        for constraint in row["constraints"]:
            words = constraint.get("words", []) if constraint["type"] == "forbidden_words" else []
            assert all(word in row["prompt"] for word in words), row
            if constraint["type"] in ("contains", "starts_with"):
                assert constraint["text"].lower() in row["prompt"].lower() or constraint["text"] in ("Paris", "blue")


def test_a_megabyte_of_hostile_text_is_judged():
    text = "\n".join(["- a.b, c" + " " * 40 + "\t" * 40, "", '"("' * 20 + "..."] * 8_000)
    assert judge(text, *(constraint for constraint, _, _ in LABELLED)).verdict == "fail"

"""What stays depends on content alone, is compared before it drops anything, and stays when asked again."""

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from pipeline.curate.duplicates import Row, choose_rows
from pipeline.curate.signatures import Banding, band_keys
from tests.labelled import read_labelled

BANDING = Banding(shingle_words=5, bands=20, rows=6, seed=0)


def rows_of(texts, prompts=None, answers=None, passed=None):
    bands = band_keys(texts, BANDING)
    return [
        Row(
            trace_id=f"t{n}",
            prompt_id=prompts[n] if prompts else f"p{n}",
            question=text,
            answer_id=answers[n] if answers else f"a{n}",
            bands=bands[n],
            passed=passed[n] if passed else False,
            pass_rate=None,
            length=10,
        )
        for n, text in enumerate(texts)
    ]


def kept_ids(rows):
    dropped = choose_rows(rows, 0.8, 5)
    return {row.trace_id for index, row in enumerate(rows) if index not in dropped}


QUESTION = "Three bakers carry 14 loaves to the old market and sell half of them there. How many loaves are left over?"


def test_the_verified_one_stays_whichever_comes_first():
    for passed in ([True, False], [False, True]):
        rows = rows_of([QUESTION, QUESTION.upper()], passed=passed)
        assert kept_ids(rows) == {f"t{passed.index(True)}"}


def test_answers_to_one_prompt_stay_and_repeats_of_an_answer_go():
    rows = rows_of([QUESTION] * 4, prompts=["p"] * 4, answers=["a", "b", "a", "c"])
    dropped = choose_rows(rows, 0.8, 5)
    assert {index: found.reason for index, found in dropped.items()} == {2: "same_response"}


def test_a_dropped_prompt_takes_all_its_answers_along_and_names_what_stays():
    rows = rows_of([QUESTION, QUESTION.lower(), QUESTION.lower()], prompts=["p", "q", "q"], passed=[True, False, False])
    dropped = choose_rows(rows, 0.8, 5)
    assert set(dropped) == {1, 2}
    assert dropped[1].reason == "same_prompt" and dropped[1].evidence["kept"] == "p"


def test_short_and_templated_prompts_are_not_swept_together():
    texts = [f"Calculate {a} * {b}." for a in range(1, 9) for b in range(1, 9)] + ["cat", "dog", "", "😀", "😁"]
    assert len(kept_ids(rows_of(texts))) == len(texts)


VOCABULARY = ["red", "blue", "7", "8", "not", "at", "least", "most", "sells", "buys", "+", "-"]
WORDS = st.lists(
    st.sampled_from(VOCABULARY),
    min_size=1,
    max_size=9,
)


@given(st.lists(st.tuples(WORDS, st.integers(0, 3), st.booleans()), max_size=12), st.randoms(use_true_random=False))
def test_the_kept_set_is_order_free_and_stands_when_deduplicated_again(drawn, random):
    rows = rows_of(
        [" ".join(words) for words, _, _ in drawn],
        prompts=[f"p{' '.join(words)}" for words, _, _ in drawn],
        answers=[f"a{answer}" for _, answer, _ in drawn],
        passed=[passed for _, _, passed in drawn],
    )
    kept = kept_ids(rows)
    assert kept_ids([row for row in rows if row.trace_id in kept]) == kept
    shuffled = list(rows)
    random.shuffle(shuffled)
    assert kept_ids(shuffled) == kept


def test_labelled_prompts_find_the_copies_and_nothing_else():
    data = read_labelled("near_duplicates")
    texts = [row["text"] for row in data]
    rows = rows_of(texts, [row["prompt"] for row in data], [row["response"] for row in data])
    dropped = choose_rows(rows, 0.8, 5)
    prompt = {row["id"]: row["prompt"] for row in data}
    cluster = {row["prompt"]: row["cluster"] for row in data}
    merged = {
        (rows[i].prompt_id, found.evidence["kept"]) for i, found in dropped.items() if "jaccard" in found.evidence
    }
    debatable, pairs = set(), []
    for a, b, duplicate, clear, similarity, _ in read_labelled("near_duplicate_pairs"):
        if not clear:
            debatable.add(frozenset((prompt[a], prompt[b])))
        elif duplicate and similarity >= 0.85 and prompt[a] != prompt[b]:
            pairs.append((prompt[a], prompt[b]))
    wrong = [pair for pair in merged if cluster[pair[0]] != cluster[pair[1]] and frozenset(pair) not in debatable]
    assert len(wrong) <= 0.01 * len(merged)
    gone = {prompt_id for prompt_id, _ in merged}
    assert sum(a in gone or b in gone for a, b in pairs) >= 0.98 * len(pairs)
    answers = defaultdict(set)
    for index, row in enumerate(data):
        if row["prompt"] not in gone and index not in dropped:
            answers[row["prompt"]].add(row["response"])
    whole = defaultdict(set)
    for row in data:
        if row["prompt"] not in gone:
            whole[row["prompt"]].add(row["response"])
    assert answers == whole

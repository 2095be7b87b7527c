"""The ledger: durable, shared, and honest about damage."""

import os
import signal
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipeline.engine import Answer, Ledger
from pipeline.engine.sampling import usable
from pipeline.errors import UserError


def answer(text="12", finish_reason="stop", tokens=5, max_tokens=64):
    return Answer(text, finish_reason, None, 10, tokens, max_tokens, 1)


def test_what_was_put_is_there_after_opening_again(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put([("a", answer("one")), ("b", answer("zwei ✓"))])
    with Ledger(tmp_path) as ledger:
        assert dict(ledger.get(["a", "b", "c"])) == {"a": answer("one"), "b": answer("zwei ✓")}
        assert len(ledger) == 2


@given(st.lists(st.tuples(st.sampled_from("abcdef"), st.text()), max_size=20))
def test_the_last_answer_of_a_key_counts(tmp_path_factory, pairs):
    with Ledger(tmp_path_factory.mktemp("ledger")) as ledger:
        for key, text in pairs:
            ledger.put([(key, answer(text))])
        assert {key: a.text for key, a in ledger.get("abcdef")} == dict(pairs)


def test_a_damaged_row_counts_as_absent(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put([("a", answer("one")), ("b", answer("two"))])
    with sqlite3.connect(tmp_path / "ledger.sqlite") as db:
        db.execute("UPDATE answers SET answer = replace(answer, 'one', 'two') WHERE key = 'a'")
    with Ledger(tmp_path) as ledger:
        assert [key for key, _ in ledger.get(["a", "b"])] == ["b"]


def test_many_keys_are_found_over_several_queries(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put((str(i), answer(str(i))) for i in range(1234))
        assert {key: a.text for key, a in ledger.get([str(i) for i in range(2000)])} == {
            str(i): str(i) for i in range(1234)
        }


def test_what_put_returned_for_survives_a_sigkill(tmp_path):
    program = (
        "import sys; from pathlib import Path; from pipeline.engine import Answer, Ledger\n"
        f"ledger = Ledger(Path({str(tmp_path)!r}))\n"
        "for i in range(10_000):\n"
        "    ledger.put([(str(i), Answer('x' * 1000, 'stop', None, 1, 1, 1, 1))]); print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(50)][-1]
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    process.wait()
    confirmed = max([confirmed, *(int(line) for line in rest[:-1] if line)])
    with Ledger(tmp_path) as ledger:
        found = {int(key) for key, _ in ledger.get([str(i) for i in range(10_000)])}
    assert set(range(confirmed + 1)) <= found


def test_a_file_that_is_no_ledger_is_a_user_error(tmp_path):
    (tmp_path / "ledger.sqlite").write_text("this is no database, but it is long enough to look at" * 100)
    with pytest.raises(UserError, match=r"ledger\.sqlite.*machine file"):
        Ledger(tmp_path)


@pytest.mark.parametrize(
    ("stored", "max_tokens", "reused"),
    [
        (answer(tokens=50, max_tokens=64), 64, True),
        (answer(tokens=50, max_tokens=64), 128, True),
        (answer(tokens=50, max_tokens=64), 49, False),
        (answer(finish_reason="length", tokens=64, max_tokens=64), 64, True),
        (answer(finish_reason="length", tokens=64, max_tokens=64), 128, False),
        (answer(finish_reason="length", tokens=64, max_tokens=64), 32, False),
    ],
)
def test_an_answer_is_reused_only_where_the_new_limit_would_have_given_it(stored, max_tokens, reused):
    assert usable(stored, max_tokens) is reused

"""The ledger: durable, checksummed, one writer, and an index that can always be made again."""

import json
import os
import random
import signal
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipeline.errors import UserError
from pipeline.ledger import Answer, Ledger, Stored, choose
from pipeline.ledger import segments as segment_files


def key(number):
    return int(number).to_bytes(16, "big")


def answer(text="12", finish_reason="stop", tokens=5, max_tokens=64, **more):
    return Answer(text, finish_reason, None, 10, tokens, max_tokens, 1, **more)


def texts(ledger, numbers):
    """Text by number of what is found and whole."""
    found = ledger.find([key(n) for n in numbers])
    places = [(k, stored[-1]) for k, stored in found.items()]
    read = list(ledger.read(places))
    return {int.from_bytes(k, "big"): a.text for (k, _), a in zip(places, read, strict=True) if a is not None}


def test_what_was_put_is_there_after_opening_again(tmp_path):
    odd = answer("zwei ✓\n\u2028\x00\ud800", tool_calls=[{"id": "1"}], token_ids=[1, 2])
    with Ledger(tmp_path) as ledger:
        ledger.put([(key(1), answer("one")), (key(2), odd)])
    with Ledger(tmp_path) as ledger:
        assert len(ledger) == 2
        places = [(k, stored[0]) for k, stored in ledger.find([key(2), key(3)]).items()]
        assert list(ledger.read(places)) == [odd]


@settings(max_examples=25)
@given(st.lists(st.tuples(st.integers(0, 5), st.text()), max_size=20))
def test_the_last_answer_of_a_key_and_limit_counts(tmp_path_factory, pairs):
    with Ledger(tmp_path_factory.mktemp("ledger")) as ledger:
        for number, text in pairs:
            ledger.put([(key(number), answer(text))])
        assert texts(ledger, range(6)) == dict(pairs)


def test_many_keys_are_found_over_several_queries(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put((key(n), answer(str(n))) for n in range(1234))
        assert texts(ledger, range(2000)) == {n: str(n) for n in range(1234)}


@pytest.mark.parametrize("lost", ["index.sqlite", None])
def test_the_index_is_made_again_from_the_segments(tmp_path, lost):
    with Ledger(tmp_path) as ledger:
        ledger.declare({"teacher": "a", "n": 1})
        ledger.put((key(n), answer(str(n))) for n in range(50))
        ledger.declare({"teacher": "b", "n": 2})
        ledger.put([(key(99), answer("99"))])
    path = tmp_path / "index.sqlite"
    if lost:
        path.unlink()
    else:
        path.write_bytes(os.urandom(20_000))
    with Ledger(tmp_path) as ledger:
        assert texts(ledger, range(100)) == {**{n: str(n) for n in range(50)}, 99: "99"}
        assert [fields["teacher"] for fields in ledger.known_fields()] == ["a", "b"]


def test_an_index_that_is_damaged_while_it_is_used_is_made_again(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put((key(n), answer(str(n))) for n in range(5000))
    path = tmp_path / "index.sqlite"
    data = bytearray(path.read_bytes())
    for page in range(2, len(data) // 4096):
        data[page * 4096 : page * 4096 + 40] = os.urandom(40)
    path.write_bytes(data)
    with Ledger(tmp_path) as ledger:
        assert texts(ledger, range(5000)) == {n: str(n) for n in range(5000)}


@settings(max_examples=60)
@given(st.data())
def test_a_torn_end_or_a_flipped_bit_costs_only_the_records_it_hits(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("ledger")
    with Ledger(folder) as ledger:
        for n in range(8):
            ledger.put([(key(n), answer(f"text {n}"))])
    path = folder / "segments" / "000001.jsonl"
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    if data.draw(st.booleans()):
        damaged = whole[: data.draw(st.integers(0, len(whole) - 1))]
        hit = {i for i, line in enumerate(lines) if sum(map(len, lines[: i + 1])) > len(damaged)}
    else:
        at, bit = data.draw(st.integers(0, len(whole) - 1)), data.draw(st.integers(0, 7))
        damaged = whole[:at] + bytes([whole[at] ^ (1 << bit)]) + whole[at + 1 :]
        first = next(i for i in range(len(lines)) if sum(map(len, lines[: i + 1])) > at)
        hit = {first, first + 1} if whole[at : at + 1] == b"\n" else {first}
    path.write_bytes(damaged)
    kept = {n: f"text {n}" for n in range(8) if n + 1 not in hit}  # line 0 declares the key fields
    with Ledger(folder) as ledger:
        assert texts(ledger, range(8)) == kept
        ledger.put([(key(n), answer("again")) for n in range(8) if n not in kept])
        assert texts(ledger, range(8)) == {**dict.fromkeys(range(8), "again"), **kept}
    (folder / "index.sqlite").unlink()
    with Ledger(folder) as ledger:
        assert texts(ledger, range(8)) == {**dict.fromkeys(range(8), "again"), **kept}


def test_a_damaged_answer_is_absent_once_it_was_read(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put([(key(1), answer("one")), (key(2), answer("two"))])
        path = tmp_path / "segments" / "000001.jsonl"
        path.write_bytes(path.read_bytes().replace(b'"one"', b'"0ne"'))
        assert texts(ledger, [1, 2]) == {2: "two"}
        assert list(ledger.find([key(1), key(2)])) == [key(2)]


def test_segments_that_have_grown_are_closed(tmp_path, monkeypatch):
    monkeypatch.setattr(segment_files, "SEGMENT_BYTES", 2000)
    with Ledger(tmp_path) as ledger:
        for n in range(40):
            ledger.put([(key(n), answer(str(n) * 50))])
    assert len(list((tmp_path / "segments").iterdir())) > 3
    with Ledger(tmp_path) as ledger:
        assert texts(ledger, range(40)) == {n: str(n) * 50 for n in range(40)}


def test_what_put_returned_for_survives_a_sigkill(tmp_path):
    program = (
        "from pathlib import Path; from pipeline.ledger import Answer, Ledger\n"
        f"ledger = Ledger(Path({str(tmp_path)!r}))\n"
        "for i in range(10_000):\n"
        "    ledger.put([(i.to_bytes(16, 'big'), Answer('x' * 1000, 'stop', None, 1, 1, 1, 1))])\n"
        "    print(i, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    confirmed = [int(process.stdout.readline()) for _ in range(50)][-1]
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split("\n")
    process.wait()
    confirmed = max([confirmed, *(int(line) for line in rest[:-1] if line)])
    with Ledger(tmp_path) as ledger:
        assert set(range(confirmed + 1)) <= set(texts(ledger, range(10_000)))


def test_a_second_writer_is_told_who_writes_and_readers_need_no_lock(tmp_path):
    program = (
        "import sys; from pathlib import Path; from pipeline.ledger import Answer, Ledger\n"
        f"with Ledger(Path({str(tmp_path)!r})) as ledger:\n"
        "    ledger.put([(b'1' * 16, Answer('x', 'stop', None, 1, 1, 1, 1))]); print('open', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", program], **pipes) as holder:
        assert holder.stdout.readline() == "open\n"
        with pytest.raises(UserError, match=f"being written by process {holder.pid} on "):
            Ledger(tmp_path)
        with Ledger(tmp_path, write=False) as ledger:
            assert len(ledger) == 1
        holder.stdin.close()
    with Ledger(tmp_path) as ledger:
        assert len(ledger) == 1


def test_segments_from_elsewhere_replace_an_index_that_is_newer_than_they_are(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.put([(key(1), answer("one"))])
        before = (tmp_path / "segments" / "000001.jsonl").read_bytes()
        ledger.put([(key(2), answer("two"))])
    (tmp_path / "segments" / "000001.jsonl").write_bytes(before)
    with Ledger(tmp_path) as ledger:
        assert texts(ledger, [1, 2]) == {1: "one"}


def stored(reason="stop", tokens=50, limit=64):
    return Stored(limit, reason, tokens, 1, 0, 1)


@pytest.mark.parametrize(
    ("one", "max_tokens", "reused"),
    [
        (stored(), 64, True),
        (stored(), 128, True),
        (stored(), 49, False),
        (stored("length", 64), 64, True),
        (stored("length", 64), 128, False),
        (stored("length", 64), 32, False),
        (stored("prompt_too_long", 0), 64, True),
        (stored("prompt_too_long", 0), 128, True),
        (stored("prompt_too_long", 0), 32, False),
    ],
)
def test_an_answer_is_reused_only_where_the_new_limit_would_have_given_it(one, max_tokens, reused):
    assert (choose([one], (max_tokens,))[0] is not None) is reused


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 4),
            st.sampled_from(["stop", "length", "prompt_too_long"]),
            st.integers(0, 9),
            st.integers(1, 9),
        )
    ),
    st.integers(1, 9),
)
def test_the_index_settles_what_the_rule_says(tmp_path_factory, rows, limit):
    with Ledger(tmp_path_factory.mktemp("ledger")) as ledger:
        for number, reason, tokens, max_tokens in rows:
            ledger.put([(key(number), answer("x", reason, tokens, max_tokens))])
        keys = [key(number) for number in range(5)]
        found = ledger.find(keys)
        expected = {k for k in keys if choose(found.get(k, ()), (limit,))[0] is not None}
        assert ledger.settled(keys, limit) == expected


def test_a_second_limit_is_tried_only_where_the_first_cut():
    cut, whole = stored("length", 64, 64), stored("stop", 90, 128)
    assert choose([], (64, 128)) == (None, 64)
    assert choose([cut], (64, 128)) == (None, 128)
    assert choose([cut, whole], (64, 128)) == (whole, 128)
    assert choose([cut, whole], (64,)) == (cut, 64)
    assert choose([stored()], (64, 128)) == (stored(), 64)


def test_records_are_lines_of_json_that_any_tool_can_read(tmp_path):
    with Ledger(tmp_path) as ledger:
        ledger.declare({"teacher": "t"})
        ledger.put([(key(7), answer("sieben"))])
    lines = (tmp_path / "segments" / "000001.jsonl").read_text().splitlines()
    assert json.loads(lines[0][9:]) == {"settings": 1, "fields": {"teacher": "t"}}
    record = json.loads(lines[1][9:])
    assert (record["key"], record["settings"], record["answer"]["text"]) == (key(7).hex(), 1, "sieben")


def test_keys_in_any_order_are_found(tmp_path):
    numbers = list(range(3000))
    random.Random(0).shuffle(numbers)
    with Ledger(tmp_path) as ledger:
        ledger.put((key(n), answer(str(n))) for n in numbers)
        assert set(texts(ledger, numbers)) == set(numbers)

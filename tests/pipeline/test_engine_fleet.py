"""The fleet against stand-ins over real HTTP: every fault is met, and each request ends exactly once."""

import asyncio
import subprocess
import sys
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.standin import Fault, Rule
from pipeline.config import Serving
from pipeline.engine import fleet as fleets
from pipeline.engine import lane as lanes
from pipeline.engine import watch
from pipeline.engine.client import Ask, Target
from pipeline.engine.fleet import Fleet
from pipeline.engine.lane import Lane
from pipeline.engine.replica import RunningServer
from pipeline.errors import UserError
from tests.standin import StandIn, serving

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = Serving(poll_s=0.02, stall_s=0.6, drain_s=5, max_restarts=2, ready_timeout_s=60)
LIVE, STREAMED = Target("m", None, vllm=True), Target("m", None, vllm=False)
"""With counters under /metrics; with nothing to go by but the stream."""
both_ways = pytest.mark.parametrize("target", [LIVE, STREAMED], ids=["metrics", "stream"])


@pytest.fixture(autouse=True)
def _short_pauses(monkeypatch):
    monkeypatch.setattr(lanes, "FIRST_PAUSE_S", 0.02)
    monkeypatch.setattr(lanes, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(fleets, "LONGEST_PAUSE_S", 0.1)
    monkeypatch.setattr(watch, "LONGEST_PAUSE_S", 0.1)


def wanted(number, text=""):
    messages = [{"role": "user", "content": f"What is {number} + {number}?{text}"}]
    body = {"messages": messages, "seed": number, "max_tokens": 64}
    return Ask(number.to_bytes(16, "big"), body, 64)


async def in_turn(asks):
    for one in asks:
        yield one


def fetch(replicas, asks, target=LIVE, window=4, patience=PATIENCE, each=None):
    """(answers by number, the fleet); no key came twice. `each` is called with the fleet at every batch."""

    async def run():
        found = {}
        async with Fleet(replicas, target, window, patience) as fleet:
            try:
                source = asks(fleet) if callable(asks) else in_turn(asks)
                async for pairs in fleet.answers(source):
                    for key, answer in pairs:
                        number = int.from_bytes(key, "big")
                        assert number not in found
                        found[number] = answer
                    if each is not None:
                        each(fleet, found)
            except UserError as error:
                error.found = found
                raise
            return found, fleet

    return asyncio.run(run())


def given(*servers):
    return [RunningServer(server.url) for server in servers]


def assert_all_there(found, number):
    assert sorted(found) == list(range(number))
    assert all(answer.text == f"The answer is {n % 100}.<|im_end|>" for n, answer in found.items())


@both_ways
def test_answers_that_come_in_another_order_belong_to_their_requests(target):
    with serving(StandIn(faults={n: Fault("hold_back", later=3) for n in range(0, 40, 5)})) as server:
        found, fleet = fetch(given(server), map(wanted, range(40)), target, window=8)
    assert_all_there(found, 40)
    assert list(found) != sorted(found)
    assert server.received == 40 and not fleet.lost


@both_ways
@pytest.mark.parametrize(
    "fault",
    [
        Fault("status", 500),
        Fault("status", 503),
        Fault("status", 408),
        Fault("drop"),
        Fault("drop_midway"),
        Fault("truncated_json"),
        Fault("no_choices"),
    ],
    ids=lambda fault: f"{fault.kind}_{fault.status}",
)
def test_a_failed_request_is_tried_again_and_costs_one_more_request_alone(fault, target):
    with serving(StandIn(faults={3: fault, 9: fault})) as server:
        found, fleet = fetch(given(server), map(wanted, range(20)), target)
    assert_all_there(found, 20)
    assert server.received == 22 and not fleet.lost


def test_a_request_that_fails_every_time_is_given_up_with_the_reason_and_the_others_are_answered():
    rule = Rule(Fault("no_choices"), lambda _, body: body["seed"] == 3)
    # Slower than the failures, so that answers come between them: the request is at fault, not the server.
    with serving(StandIn(rules=[rule], delay_s=0.05)) as server:
        found, fleet = fetch(given(server), map(wanted, range(200)), window=8)
    assert sorted(found) == [n for n in range(200) if n != 3]
    [(lost, why)] = fleet.lost
    assert lost.body["seed"] == 3 and "failed 8 times" in why and "without choices" in why
    assert Counter(body["seed"] for body in server.bodies)[3] == fleets.MAX_TRIES


@pytest.mark.parametrize("retry_after", [None, "0.05", "Wed, 21 Oct 2015 07:28:00 GMT"])
def test_a_busy_server_gets_patience_that_counts_as_no_try(retry_after):
    busy = Fault("status", 429, retry_after=retry_after)
    rules = [Rule(busy, lambda _, body, seed=seed: body["seed"] == seed, times=3) for seed in (2, 3)]
    with serving(StandIn(rules=rules)) as server:
        found, fleet = fetch(given(server), map(wanted, range(40)))
    assert_all_there(found, 40)
    assert server.received == 46 and server.statuses[429] == 6
    assert not fleet.lost and not fleet._tries


def test_a_busy_server_is_sent_less_while_the_other_goes_on_and_recovers():
    with serving(StandIn(faults=dict.fromkeys(range(6), Fault("status", 429)), delay_s=0.01)) as busy:
        with serving(StandIn(delay_s=0.01)) as free:
            found, fleet = fetch(given(busy, free), map(wanted, range(200)), window=8)
    assert_all_there(found, 200)
    assert busy.answered + free.answered == 200 and 0 < busy.answered < free.answered
    assert fleet.lanes[0].limit > 1 and fleet.lanes[0].gone is None


def test_a_pause_lasts_as_long_as_the_server_says_and_grows_without_its_word():
    lane = Lane(RunningServer("http://h/v1"), 8, 8.0, ready=True)
    lane.pause("busy", 100.0)
    now = time.monotonic()
    assert not lane.free(now + 50) and lane.free(now + 150)
    grown = []
    for _ in range(5):
        lane.open_at = 0.0
        lane.pause("failed")
        grown.append(round(lane.open_at - time.monotonic(), 2))
    assert grown == sorted(grown) and grown[-1] <= lanes.LONGEST_PAUSE_S


def test_a_refused_request_is_asked_once_and_slows_nobody():
    rule = Rule(Fault("status", 400, "bad field"), lambda _, body: body["seed"] % 10 == 3)
    with serving(StandIn(rules=[rule])) as server:
        found, fleet = fetch(given(server), map(wanted, range(50)))
    assert sorted(found) == [n for n in range(50) if n % 10 != 3]
    assert server.received == 50
    assert len(fleet.lost) == 5 and all("HTTP 400" in why and "bad field" in why for _, why in fleet.lost)
    [lane] = fleet.lanes
    assert lane.failures == 0 and lane.limit == 4 and lane.open_at == 0


@pytest.mark.parametrize("status", [401, 403, 404])
@pytest.mark.parametrize("number", [1, 2])
def test_a_wrong_key_or_model_ends_the_run_at_once(status, number):
    rule = Rule(Fault("status", status, "not for you"), lambda *_: True)
    with ExitStack() as stack:
        servers = [stack.enter_context(serving(StandIn(rules=[rule]))) for _ in range(number)]
        with pytest.raises(UserError, match=f"HTTP {status}.*not for you"):
            fetch(given(*servers), map(wanted, range(500)))
    assert sum(server.received for server in servers) <= 4 * number


def test_a_server_with_another_model_is_left_out_and_loses_nothing():
    with serving(StandIn(model="other")) as other, serving(StandIn(model="m")) as right:
        found, fleet = fetch(given(other, right), map(wanted, range(60)))
    assert_all_there(found, 60)
    assert not fleet.lost and right.answered == 60 and other.received <= 4


def test_twenty_refusals_without_an_answer_end_the_run_and_with_one_they_do_not():
    rule = Rule(Fault("status", 400, "no such field"), lambda _, body: body["seed"] > 0)
    with serving(StandIn(rules=[rule])) as server:
        found, fleet = fetch(given(server), map(wanted, range(50)), window=1)
        assert list(found) == [0] and len(fleet.lost) == 49
        server.reset()
        with pytest.raises(UserError, match=r"refused every request.*no such field"):
            fetch(given(server), map(wanted, range(1, 500)))
    assert server.received < fleets.EVERYTHING_REFUSED + 4


@both_ways
def test_a_request_that_hangs_while_others_go_on_is_moved_once_nothing_else_moves(target):
    hang = Rule(Fault("hang"), lambda _, body: body["seed"] == 5, times=1)
    with serving(StandIn(rules=[hang], delay_s=0.01)) as one, serving(StandIn(rules=[hang], delay_s=0.01)) as other:
        found, fleet = fetch(given(one, other), map(wanted, range(100)), target)
    assert_all_there(found, 100)
    assert one.received + other.received == 101 and not fleet.lost


@both_ways
def test_a_server_that_stands_still_ends_the_run_with_what_came_and_the_rule(target):
    with serving(StandIn(faults={10: Fault("dead_core")})) as server:
        with pytest.raises(UserError, match=r"made no token for 1 s \(serving.stall_s\)") as raised:
            fetch(given(server), map(wanted, range(50)), target)
    assert len(raised.value.found) == server.answered >= 7


@both_ways
def test_requests_of_a_dead_core_move_to_another_server_and_it_is_used_again_when_it_answers(target):
    with serving(StandIn(faults={10: Fault("dead_core")})) as dying, serving(StandIn(delay_s=0.005)) as other:

        async def until_it_is_used_again(fleet):
            number, before = 0, None
            while before is None or dying.answered <= before + 2:
                yield wanted(number)
                number += 1
                if before is None and dying.dead and fleet.lanes[0].gone and not fleet.lanes[0].in_flight:
                    before = dying.answered
                    dying.revive()

        found, fleet = fetch(given(dying, other), until_it_is_used_again, target)
    assert_all_there(found, len(found))
    assert not fleet.lost and dying.received + other.received >= len(found)


def test_a_server_that_stays_dead_costs_no_request_however_often_it_is_looked_at():
    patience = PATIENCE.model_copy(update={"stall_s": 0.1})
    # The other one has a full window when the dead one is tried again, so that the same requests meet it twice.
    with serving(StandIn(dead=True)) as dead, serving(StandIn(token_s=0.05)) as other:

        async def until_it_was_tried_often(_):
            number = 0
            while dead.received < 5:
                yield wanted(number)
                number += 1

        found, fleet = fetch(given(dead, other), until_it_was_tried_often, window=1, patience=patience)
    assert_all_there(found, other.answered)
    assert not fleet.lost


@both_ways
def test_a_slow_first_token_is_not_death(target):
    slow = Fault("slow_first_token", seconds=0.3)
    with serving(StandIn(faults=dict.fromkeys(range(0, 12, 4), slow))) as server:
        found, fleet = fetch(given(server), map(wanted, range(12)), target, window=1)
    assert_all_there(found, 12)
    assert server.received == 12 and fleet.lanes[0].gone is None


@both_ways
def test_a_long_answer_is_not_death_while_its_tokens_come(target):
    with serving(StandIn(token_s=0.02, text=lambda _: "word" * 60, events=60)) as server:
        found, _ = fetch(given(server), map(wanted, range(2)), target)
    assert server.received == 2 and all(answer.num_output_tokens == 60 for answer in found.values())


@both_ways
def test_thinking_is_read_from_either_field_and_no_content_is_an_answer(target):
    faults = {
        0: Fault("null_content"),
        1: Fault("reasoning"),
        2: Fault("reasoning", field="reasoning_content"),
        3: Fault("cut_in_thinking"),
        4: Fault("cut_in_thinking", field="content"),
    }
    with serving(StandIn(faults=faults, text=lambda _: "<think>two and two</think>4")) as server:
        found, _ = fetch(given(server), map(wanted, range(5)), target, window=1)
    assert server.received == 5
    got = [(found[n].text, found[n].reasoning, found[n].finish_reason) for n in range(5)]
    split = ("4", "two and two", "stop")
    assert got[:3] == [("", None, "stop"), split, split]
    assert got[3:] == [("", "two and two", "length"), ("<think>two and two", None, "length")]


def test_an_answer_may_come_in_one_large_event():
    with serving(StandIn(text=lambda _: "x" * 600_000, events=1)) as server:
        body = {**wanted(0).body, "max_tokens": 200_000}
        server.max_model_len = 1 << 20
        found, _ = fetch(given(server), [Ask(b"\0" * 16, body, 1)], STREAMED)
    assert len(found[0].text) == 600_000 and server.received == 1


def test_the_faster_server_gets_more_and_a_full_window_gets_none():
    with serving(StandIn(delay_s=0.1)) as slow, serving(StandIn(delay_s=0.005)) as fast:
        found, _ = fetch(given(slow, fast), map(wanted, range(200)))
    assert_all_there(found, 200)
    assert slow.answered * 3 < fast.answered and slow.max_concurrent <= 4 and fast.max_concurrent <= 4
    with serving(StandIn(dead=True)) as full, serving(StandIn(delay_s=0.005)) as free:
        seen = []
        fetch(given(full, free), map(wanted, range(60)), window=2, each=lambda *_: seen.append(full.received))
    assert max(seen[:20]) == 2 and full.max_concurrent == 2


def test_one_fleet_serves_many_rounds_and_no_answer_waits_for_the_next():
    async def run(server):
        async with Fleet(given(server), LIVE, 4, PATIENCE) as fleet:
            for start in range(0, 300, 3):
                got = []
                async for pairs in fleet.answers(in_turn(map(wanted, range(start, start + 3)))):
                    got += [int.from_bytes(key, "big") for key, _ in pairs]
                    while any(task.get_coro().__name__ == "_dispatch" for task in asyncio.all_tasks()):
                        if len(got) < 3:
                            break
                        await asyncio.sleep(0)  # until the round's end is near: its last mark may still be to come
                assert sorted(got) == [start, start + 1, start + 2]

    with serving(StandIn()) as server:
        asyncio.run(run(server))
    assert server.received == 300


def test_draining_keeps_what_is_on_its_way_and_sends_nothing_more():
    with serving(StandIn(delay_s=0.1)) as server:

        def at_once(fleet, found):
            fleet.drain()

        found, fleet = fetch(given(server), map(wanted, range(50)), each=at_once)
    assert 4 <= len(found) == server.received == server.answered < 20 and not fleet.lost


class Program:
    """A stand-in as a process of its own (a `Replica`) that ends at a word, or with a request of each life's number."""

    _SCRIPT = """
import asyncio, os, sys
from benchmarks.standin import StandIn
from benchmarks.standin.__main__ import serve

last = int(sys.argv[1])
def text(body):
    if standin.received > last >= 0 or "poison" in str(body["messages"]):
        print("the engine fell over", flush=True)
        os._exit(3)
    return f"The answer is {body['seed'] % 100}.<|im_end|>"

standin = StandIn(text=text, delay_s=0.02)
if last == -2:
    sys.exit("there is no such model")
asyncio.run(serve(standin, "127.0.0.1", 0, False))
"""

    def __init__(self, folder, number=0, ends=()):
        self.name, self.log, self.lives = f"program {number}", folder / f"{number}.log", 0
        self._ends, self._process = ends, None

    def start(self):
        last = self._ends[self.lives] if self.lives < len(self._ends) else -1
        if last == -3:
            raise UserError("no place for another server")
        self.lives += 1
        with self.log.open("w") as log:
            command = [sys.executable, "-c", self._SCRIPT, str(last)]
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)

    @property
    def url(self):
        first = self.log.read_text().partition("\n")[0] if self._process else ""
        return f"{first}/v1" if first.startswith("http") else None

    def alive(self):
        return self._process is not None and self._process.poll() is None

    def log_tail(self, lines=15):
        return self.log.read_text()

    def stop(self):
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def test_a_server_of_ours_that_ends_is_started_again_and_no_sample_is_doubled(tmp_path):
    program = Program(tmp_path, ends=[10])
    found, fleet = fetch([program], map(wanted, range(40)))
    assert_all_there(found, 40)
    assert program.lives == 2 and fleet.lanes[0].restarts == 1 and not fleet.lost
    assert not program.alive()


def test_a_server_of_ours_that_ends_again_and_again_is_given_up_and_the_other_finishes(tmp_path, capsys):
    bad, good = Program(tmp_path, 0, ends=[2] * 9), Program(tmp_path, 1)

    async def until_it_is_given_up(fleet):
        number = 0
        while not fleet.lanes[0].gone:
            yield wanted(number)
            number += 1

    found, fleet = fetch([bad, good], until_it_is_given_up)
    assert_all_there(found, len(found))
    assert bad.lives == 1 + PATIENCE.max_restarts and good.lives == 1 and not fleet.lost
    assert "program 0: given up" in capsys.readouterr().err
    with pytest.raises(UserError, match=r"(?s)ended; the end of its log.*the engine fell over"):
        fetch([Program(tmp_path, 0, ends=[2] * 9)], map(wanted, range(200)))


def test_a_request_that_ends_two_servers_is_lost_and_the_others_are_answered(tmp_path):
    programs = [Program(tmp_path, number) for number in range(2)]
    asks = [wanted(number, " poison" if number == 7 else "") for number in range(60)]
    # Looked at so rarely that the broken connection is seen before the end of the process.
    found, fleet = fetch(programs, asks, window=1, patience=PATIENCE.model_copy(update={"poll_s": 0.5}))
    assert sorted(found) == [n for n in range(60) if n != 7]
    [(lost, why)] = fleet.lost
    assert lost.body["seed"] == 7 and "two servers" in why
    assert sum(program.lives for program in programs) == 4


def test_a_server_of_ours_whose_core_dies_is_started_again(tmp_path):
    import urllib.request

    program, killed = Program(tmp_path), []

    def kill_once(fleet, found):
        if not killed and len(found) >= 8:
            killed.append(urllib.request.urlopen(program.url.removesuffix("/v1") + "/standin/kill", b"").status)

    found, fleet = fetch([program], map(wanted, range(40)), each=kill_once)
    assert_all_there(found, 40)
    assert killed == [200] and program.lives == 2 and not fleet.lost


def test_an_error_that_nobody_foresaw_ends_the_run_and_is_not_forgotten(monkeypatch):
    async def fail(*_):
        raise ZeroDivisionError

    monkeypatch.setattr(fleets, "ask", fail)
    with serving(StandIn()) as server, pytest.raises(ZeroDivisionError):
        fetch(given(server), map(wanted, range(3)))
    monkeypatch.undo()
    monkeypatch.setattr(Lane, "read_counters", fail)
    with serving(StandIn()) as server, pytest.raises(ZeroDivisionError):
        fetch(given(server), map(wanted, range(3)))


def test_a_server_that_cannot_load_fails_with_the_end_of_its_log(tmp_path):
    with pytest.raises(UserError, match=r"(?s)program 0: ended while loading.*there is no such model"):
        fetch([Program(tmp_path, ends=[-2])], map(wanted, range(5)))


def test_a_server_that_is_never_ready_is_given_up_and_the_other_does_all(tmp_path):
    class Mute(Program):
        url = None

    mute, good = Mute(tmp_path, 0), Program(tmp_path, 1)
    patience = PATIENCE.model_copy(update={"ready_timeout_s": 0.3})
    with pytest.raises(UserError, match="is not ready after 0 s"):
        fetch([mute], map(wanted, range(5)), patience=patience)
    found, _ = fetch([mute, good], map(wanted, range(5)))
    assert_all_there(found, 5)


def test_a_server_that_cannot_be_started_again_is_given_up_with_the_reason(tmp_path):
    bad, good = Program(tmp_path, 0, ends=[3, -3]), Program(tmp_path, 1)

    async def until_it_is_given_up(fleet):
        number = 0
        while not fleet.lanes[0].gone:
            yield wanted(number)
            number += 1

    found, fleet = fetch([bad, good], until_it_is_given_up)
    assert_all_there(found, len(found))
    assert fleet.lanes[0].gone == "no place for another server" and not fleet.lost

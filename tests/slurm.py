"""A real Slurm of two nodes, n1 and n2, on this machine: munged, slurmctld and two slurmd in a temporary folder."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

_DAEMONS = ("munged", "slurmctld", "slurmd")
_CLIENTS = ("mungekey", "sbatch", "squeue", "scancel", "scontrol", "sinfo")
_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])

# No cgroups, no accounting and one core a node: what runs without systemd, in a container and beside a cluster.
_CONF = """\
ClusterName=warmstart-tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={root}/munge/socket
CredType=cred/munge
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/builtin
SchedulerParameters=batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
KillWait=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""

# A child in its process group stands for vLLM's engine process.
_SERVER = """\
import http.server, json, os, subprocess, sys
host, port = sys.argv[1:3]
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

class Handler(http.server.BaseHTTPRequestHandler):
    def answer(self, value):
        body = json.dumps(value).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        self.answer({"data": [{"id": "tiny"}]})

    def do_POST(self):
        facts = {"pid": os.getpid(), "child": child.pid, "environment": dict(os.environ)}
        self.answer({"choices": [{"message": {"content": json.dumps(facts)}}]})

    def log_message(self, *_):
        pass

print("serving", flush=True)
http.server.ThreadingHTTPServer((host, int(port)), Handler).serve_forever()
"""


@dataclass(frozen=True, slots=True)
class Cluster:
    """A running cluster; the process that started it has its SLURM_CONF in the environment."""

    root: Path
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    def jobs(self) -> list[str]:
        """What squeue lists, one `12_0 RUNNING n1` a job."""
        listed = _said(["squeue", "--noheader", "--array", "--format=%i %T %N"])
        return listed.splitlines()

    def processes(self) -> list[str]:
        """Live processes that belong to the cluster: its daemons, its step daemons, its jobs and their children."""
        return _processes_with(f"WARMSTART_TEST_SLURM_ROOT={self.root}", f"SLURM_CONF={self.root}/slurm.conf")

    def stop_controller(self) -> None:
        """End slurmctld, as an upgrade of the cluster does; jobs run on."""
        self.daemons["slurmctld"].terminate()
        self.daemons["slurmctld"].wait()

    def start_controller(self) -> None:
        """Start slurmctld with the state that it saved."""
        self.start("slurmctld", [_found("slurmctld"), "-D", "-f", str(self.root / "slurm.conf")])

    def start(self, name: str, command: list[str]) -> None:
        """Start a daemon in the foreground, marked as the cluster's."""
        environment = {"PATH": _PATH, "HOME": str(self.root), "WARMSTART_TEST_SLURM_ROOT": str(self.root)}
        with (self.root / f"{name}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )


def need_slurm() -> None:
    """Skip the calling test where Slurm's or munge's programs are absent."""
    missing = [name for name in (*_DAEMONS, *_CLIENTS) if shutil.which(name, path=_PATH) is None]
    if missing:
        pytest.skip(
            f"no {', '.join(missing)} here; apt-get install slurm-wlm munge, or WARMSTART_TEST_SLURM=1 make setup"
        )


@contextlib.contextmanager
def two_node_slurm() -> Iterator[Cluster]:
    """Start the cluster, point SLURM_CONF at it, and end it with every job and process of it."""
    need_slurm()
    # A socket's path has at most 107 characters: pytest's folders are too long for munge's.
    with tempfile.TemporaryDirectory(prefix="slurm-") as folder, contextlib.ExitStack() as stack:
        root = Path(folder)
        _write_settings(root)
        stack.callback(_set_environment, "SLURM_CONF", os.environ.get("SLURM_CONF"))
        os.environ["SLURM_CONF"] = str(root / "slurm.conf")
        cluster = Cluster(root)
        stack.callback(_end, cluster)
        for name, command in _commands(root).items():
            cluster.start(name, command)
            if name == "munged":
                _wait(lambda: (root / "munge/socket").exists(), "munged has no socket", root)
        _wait(lambda: _said(["sinfo", "--noheader", "--format=%D %t"]).split() == ["2", "idle"], "no idle nodes", root)
        yield cluster


def _set_environment(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _write_settings(root: Path) -> None:
    for name in ("munge", "state", "spool-n1", "spool-n2"):
        (root / name).mkdir(mode=0o700)
    key = root / "munge/key"
    subprocess.run(["mungekey", "--create", f"--keyfile={key}"], check=True, env={"PATH": _PATH})
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(3)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        controller, first, second = (probe.getsockname()[1] for probe in probes)
    user = subprocess.run(["id", "-un"], check=True, capture_output=True, text=True).stdout.strip()
    host = socket.gethostname().split(".")[0]
    text = _CONF.format(root=root, user=user, host=host, controller=controller, first=first, second=second)
    (root / "slurm.conf").write_text(text)


def _commands(root: Path) -> dict[str, list[str]]:
    munge = root / "munge"
    places = [f"--{what}-file={munge}/{what}" for what in ("key", "log", "pid", "seed")]
    conf = str(root / "slurm.conf")
    return {
        "munged": [_found("munged"), "--foreground", "--force", f"--socket={munge}/socket", *places],
        "slurmctld": [_found("slurmctld"), "-D", "-c", "-f", conf],
        "slurmd-n1": [_found("slurmd"), "-D", "-c", "-N", "n1", "-f", conf],
        "slurmd-n2": [_found("slurmd"), "-D", "-c", "-N", "n2", "-f", conf],
    }


def _found(name: str) -> str:
    path = shutil.which(name, path=_PATH)
    assert path
    return path


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout


def _wait(condition: Callable[[], bool], complaint: str, root: Path, timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            logs = [*root.glob("*.out"), *root.glob("*.log")]
            tails = [f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-8:]) for log in logs]
            raise AssertionError("\n".join([complaint, *tails]))
        time.sleep(0.1)


def _processes_with(*marks: str) -> list[str]:
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            environment = (entry / "environ").read_bytes().split(b"\0")
            if any(mark.encode() in environment for mark in marks):
                found.append(f"{entry.name} {(entry / 'cmdline').read_bytes().replace(bytes(1), b' ').decode()}")
    return found


def _end(cluster: Cluster) -> None:
    """Cancel every job, end the daemons, and see that nothing is left; what is left all the same is killed."""
    try:
        if all(process.poll() is None for process in cluster.daemons.values()):
            subprocess.run(["scancel", f"--user={os.getuid()}"], timeout=60)
            _wait(lambda: not cluster.jobs(), "jobs do not end", cluster.root)
        for process in reversed(cluster.daemons.values()):
            process.terminate()
            process.wait(timeout=30)
        _wait(lambda: not cluster.processes(), f"processes are left: {cluster.processes()}", cluster.root, 10)
    finally:
        while left := cluster.processes():
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(process.split()[0]), signal.SIGKILL)
            for daemon in cluster.daemons.values():
                daemon.poll()
            time.sleep(0.1)


def stand_in_server(folder: Path, *more: str) -> list[str]:
    """The command of a tiny server whose completions tell its process, its child and its environment, as JSON."""
    script = folder / "server.py"
    script.write_text(_SERVER)
    return [sys.executable, str(script), "{host}", "{port}", *more]


def write_tiny_model(folder: Path) -> Path:
    """A random Llama whose heads have 64 dimensions, the least that vLLM's CPU attention takes."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.tiny_models import chatml_tokenizer

    tokenizer = chatml_tokenizer()
    torch.manual_seed(0)
    shape = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "max_position_embeddings": 512}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 64}
    ends = {"bos_token_id": None, "eos_token_id": 0, "pad_token_id": 0}
    LlamaForCausalLM(LlamaConfig(vocab_size=len(tokenizer), **shape, **heads, **ends)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder

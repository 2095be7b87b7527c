"""Model servers as Slurm jobs, on a real Slurm of two nodes: register, die, come back, outlive a stage, and end."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest

from pipeline.config import Machine
from pipeline.config.base import validate
from pipeline.config.machine import SlurmJobs
from pipeline.engine.slurm import SlurmReplica, slurm_replicas
from pipeline.errors import UserError
from tests.slurm import Cluster, stand_in_server, two_node_slurm, write_tiny_model

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = SlurmJobs(gpus_per_server=0, cpus_per_server=1, time="00:30:00")


@pytest.fixture(scope="module")
def cluster():
    with two_node_slurm() as running:
        yield running


@pytest.fixture
def folder(cluster: Cluster, tmp_path: Path):
    """A shared folder whose name needs quoting; after the test no job is left."""
    yield tmp_path / "the 'work' folder 100%a"
    subprocess.run(["scancel", f"--user={os.getuid()}"], check=True)
    wait_for(lambda: not cluster.jobs(), "the jobs' end")


def wait_for(condition: Callable[[], object], what: str, timeout_s: float = 60) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"no sign of {what} after {timeout_s:g} s"
        time.sleep(0.1)


def wait_until_ready(replicas: list[SlurmReplica], timeout_s: float = 60) -> None:
    def ready() -> bool:
        for replica in replicas:
            assert replica.alive(), str(replica.failure())
        return all(replica.url for replica in replicas)

    wait_for(ready, "the servers", timeout_s)


def ask(replica: SlurmReplica, body: dict | None = None) -> str:
    assert replica.url
    sent = json.dumps(body or {"messages": []}).encode()
    request = urllib.request.Request(f"{replica.url}/chat/completions", sent, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as reply:
        return json.load(reply)["choices"][0]["message"]["content"]


def facts_of(replica: SlurmReplica) -> dict:
    return json.loads(ask(replica))


def jobs_of(folder: Path) -> dict[str, str]:
    return json.loads((folder / "jobs.json").read_text())["jobs"]


def exists(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.slow
def test_one_array_gives_servers_on_two_nodes_that_see_no_secret_and_end_when_stopped(
    cluster, folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    replicas = slurm_replicas(stand_in_server(tmp_path), {"NAMED": "a 'b' $c"}, 2, folder, SETTINGS)
    assert not cluster.jobs()
    for replica in replicas:
        replica.start()
    monkeypatch.delenv("http_proxy")
    assert len({job.split("_")[0] for job in jobs_of(folder).values()}) == 1
    wait_until_ready(replicas)
    wait_for(lambda: all(r.alive() and r.state.startswith("running on") for r in replicas), "squeue's word")
    facts = [facts_of(replica) for replica in replicas]
    assert {found["environment"]["SLURMD_NODENAME"] for found in facts} == {"n1", "n2"}
    assert [replica.name for replica in replicas] == [f"slurm {jobs_of(folder)[index]}" for index in "01"]
    for found in facts:
        assert found["environment"]["NAMED"] == "a 'b' $c"
        assert "HF_TOKEN" not in found["environment"]
    assert not any("hf_secret" in process for process in environments_of(cluster))
    assert (folder / "spec.json").stat().st_mode & 0o077 == 0
    assert "serving" in replicas[0].log_tail()
    for replica in replicas:
        replica.stop()
        assert not replica.alive() and replica.url is None
    wait_for(lambda: not cluster.jobs(), "the jobs' end")
    wait_for(lambda: not any(exists(f[name]) for f in facts for name in ("pid", "child")), "the processes' end")
    assert not list(folder.glob("server-*.json"))


def environments_of(cluster: Cluster) -> list[str]:
    pids = [process.split()[0] for process in cluster.processes()]
    assert len(pids) > len(cluster.daemons)
    return [Path(f"/proc/{pid}/environ").read_text(errors="replace") for pid in pids if exists(int(pid))]


@pytest.mark.slow
def test_a_server_that_dies_is_seen_and_started_again_while_the_other_keeps_its_job(cluster, folder, tmp_path):
    one, other = replicas = slurm_replicas(stand_in_server(tmp_path), {}, 2, folder, SETTINGS)
    for replica in replicas:
        replica.start()
    wait_until_ready(replicas)
    before, other_before, facts = one.name, other.name, facts_of(one)
    os.kill(facts["pid"], signal.SIGKILL)
    wait_for(lambda: not one.alive(), "the death")
    assert one.url is None and not exists(facts["child"])
    failure = str(one.failure())
    assert "exit code -9" in failure and "JobState=FAILED" in failure and "machine file" in failure
    one.start()
    wait_until_ready(replicas)
    assert one.name != before and facts_of(one)["pid"] != facts["pid"]
    assert other.name == other_before and facts_of(other)
    assert {f"slurm {job}" for job in jobs_of(folder).values()} == {one.name, other.name}


STAGE = """\
import sys, time
from pathlib import Path
from pipeline.config.machine import SlurmJobs
from pipeline.engine.slurm import slurm_replicas
command, folder = sys.argv[2:], Path(sys.argv[1])
replicas = slurm_replicas(command, {}, 2, folder, SlurmJobs(gpus_per_server=0, cpus_per_server=1, time="00:30:00"))
for replica in replicas:
    replica.start()
while not all([replica.alive() and replica.url for replica in replicas]):
    time.sleep(0.1)
print("ready", flush=True)
time.sleep(600)
"""


@pytest.mark.slow
def test_jobs_outlive_a_killed_stage_the_next_run_attaches_and_another_spec_replaces_them(cluster, folder, tmp_path):
    command = stand_in_server(tmp_path)
    stage = subprocess.Popen(
        [sys.executable, "-c", STAGE, str(folder), *command], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert stage.stdout is not None and stage.stdout.readline() == "ready\n"
    stage.kill()
    stage.wait()
    stage.stdout.close()
    jobs = jobs_of(folder)
    # As if the kill had come between sbatch and jobs.json: the second job is nobody's.
    record = json.loads((folder / "jobs.json").read_text())
    (folder / "jobs.json").write_text(json.dumps({**record, "jobs": {"0": jobs["0"]}}))

    monitors = slurm_replicas(command, {}, 2, tmp_path / "elsewhere", SETTINGS)
    assert [monitor.alive() for monitor in monitors] == [False, False], "another folder's jobs are not ours"
    attached = slurm_replicas(command, {}, 2, folder, SETTINGS)
    assert jobs_of(folder) == {"0": jobs["0"]} and attached[0].url and attached[1].url is None
    pid = facts_of(attached[0])["pid"]
    for replica in attached:
        replica.start()
    wait_until_ready(attached)
    assert jobs_of(folder)["0"] == jobs["0"] and facts_of(attached[0])["pid"] == pid
    assert jobs_of(folder)["1"] != jobs["1"]

    others = slurm_replicas([*command, "--other"], {}, 2, folder, SETTINGS)
    assert jobs_of(folder) == {} and not any(replica.url for replica in others)
    wait_for(lambda: not cluster.jobs() and not exists(pid), "the old jobs' end")


@pytest.mark.slow
def test_a_job_without_a_heartbeat_ends_by_itself(cluster, folder, tmp_path):
    (replica,) = slurm_replicas(stand_in_server(tmp_path), {}, 1, folder, SETTINGS.model_copy(update={"linger_s": 3}))
    replica.start()
    wait_until_ready([replica])
    pid = facts_of(replica)["pid"]
    for _ in range(12):
        time.sleep(0.5)
        assert replica.alive()
    wait_for(lambda: not cluster.jobs(), "the job's end", 30)
    assert not exists(pid)
    assert "no stage has asked" in replica.log_tail() and "JobState=COMPLETED" in str(replica.failure())


@pytest.mark.slow
def test_a_restarting_controller_is_no_death_and_a_start_meanwhile_is_made_up_for(cluster, folder, tmp_path, capsys):
    one, other = replicas = slurm_replicas(stand_in_server(tmp_path), {}, 2, folder, SETTINGS)
    one.start()
    wait_until_ready(replicas)
    old = one.name
    cluster.stop_controller()
    one.start()
    assert "Unable to contact" in capsys.readouterr().err and "not submitted" in one.state
    asked = time.monotonic()
    while time.monotonic() < asked + 12:
        assert one.alive() and other.alive() and other.url
        time.sleep(0.1)
    cluster.start_controller()
    wait_for(lambda: one.alive() and one.name != old and one.url, "the new job")
    assert other.alive() and facts_of(other)
    wait_for(lambda: len(cluster.jobs()) == 2, "the old job's end")


@pytest.mark.slow
def test_a_refusal_is_told_in_the_words_of_sbatch(folder, tmp_path):
    wrong = SETTINGS.model_copy(update={"partition": "nope; touch x"})
    (replica,) = slurm_replicas(stand_in_server(tmp_path), {}, 1, folder, wrong)
    with pytest.raises(UserError, match=r"(?s)invalid partition specified: nope; touch x.*machine file"):
        replica.start()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "ready_timeout_s", "words"),
    [
        ([sys.executable, "-c", "raise SystemExit('no such model')", "{port}"], 60, "no such model"),
        ([sys.executable, "-c", "import time; time.sleep(600)", "{port}"], 1, "not ready after 1 s"),
    ],
    ids=["ends", "hangs"],
)
def test_a_server_that_never_answers_fails_with_its_log(folder, command, ready_timeout_s, words):
    (replica,) = slurm_replicas(command, {}, 1, folder, SETTINGS, ready_timeout_s=ready_timeout_s)
    replica.start()
    wait_for(lambda: not replica.alive(), "the failure")
    assert replica.url is None and words in replica.log_tail()
    assert "JobState=FAILED" in str(replica.failure())


def test_without_slurm_the_remedy_is_told(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match=r"no `sbatch` on PATH.*machine file"):
        slurm_replicas(["server", "{port}"], {}, 1, tmp_path, SETTINGS)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"extra": ["-p main"]}, "long form"),
        ({"extra": ["main"]}, "long form"),
        ({"extra": ["--export=ALL"]}, "set by Warmstart"),
        ({"extra": ["--exp=ALL"]}, "set by Warmstart"),
        ({"extra": ["--wrap=id"]}, "set by Warmstart"),
        ({"time": 43200}, "in quotes"),
        ({"time": "soon"}, "match pattern"),
        ({"memory": "much"}, "match pattern"),
        ({"gpus_per_server": -1}, "greater than or equal to 0"),
    ],
)
def test_a_setting_that_sbatch_would_misread_is_refused(values, words):
    with pytest.raises(UserError, match=words):
        validate(Machine, {"serving": {"slurm": values}}, "machine.yaml")


def test_settings_of_a_real_cluster_are_taken():
    values = {"partition": "gpu", "extra": ["--exclusive", "--gres=gpu:h100:8"], "time": "1-12:00:00", "memory": "0"}
    assert validate(Machine, {"serving": {"slurm": values}}, "machine.yaml").serving.slurm == SlurmJobs(**values)


@pytest.mark.proof
def test_two_vllm_servers_on_two_nodes_each_give_a_completion(cluster, folder, tmp_path):
    python = ROOT / ".venv-vllm/bin/python"
    model = write_tiny_model(tmp_path / "model")
    command = [str(python), "-m", "vllm.entrypoints.openai.api_server", "--model", str(model)]
    command += ["--served-model-name", "tiny", "--host", "{host}", "--port", "{port}", "--dtype", "float32"]
    command += ["--max-model-len", "256", "--max-num-seqs", "2", "--enforce-eager"]
    environment = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    environment |= {"VLLM_CPU_NUM_OF_RESERVED_CPU": "0", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    replicas = slurm_replicas(command, environment, 2, folder, SETTINGS, ready_timeout_s=900)
    for replica in replicas:
        replica.start()
    wait_until_ready(replicas, 960)
    for replica in replicas:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "2 + 2?"}], "max_tokens": 8}
        assert isinstance(ask(replica, {**body, "ignore_eos": True}), str)
    for replica in replicas:
        replica.stop()
    wait_for(lambda: not cluster.jobs(), "the jobs' end")

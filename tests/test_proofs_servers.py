"""Two real vLLM servers with one queue, on this machine and as Slurm jobs on two nodes; one is killed in the middle."""

import json
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
import yaml

from pipeline.records import Sample
from pipeline.shards import iter_table
from tests.project import ROOT, Project
from tests.slurm import two_node_slurm
from tests.test_proofs import ledger_rows, wait_for

pytestmark = pytest.mark.proof


@pytest.fixture(scope="module")
def project(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("project"))
    project.dvc("repro", "configs/smoke/dvc.yaml:tasks", "configs/smoke/dvc.yaml:base")
    return project


def start_generate(project, engine):
    """`generate` with two servers, run as a user runs one stage."""
    config = yaml.safe_load((project.folder / "configs/smoke/generate.yaml").read_text())
    config["samples_per_task"] = 8
    config["teachers"][0]["engine"] |= {"type": engine}
    (project.folder / "two.yaml").write_text(yaml.safe_dump(config))
    serving = {"servers": 2, "max_num_seqs": 8, "slurm": {"cpus_per_server": 1, "time": "00:30:00"}}
    machine = {"workers": 1, "serving": serving, "ledger": f".work/ledger-{engine}"}
    (project.folder / "machine.yaml").write_text(yaml.safe_dump(machine))
    command = [str(ROOT / ".venv/bin/python"), "-m", "pipeline", "generate", "--config", "two.yaml"]
    command += ["--in", "tasks=data/smoke/tasks", "--in", "teacher=data/smoke/base"]
    command += ["--out", f"data/{engine}/generate", "--report", f"reports/{engine}.json"]
    environment = {**os.environ, "WARMSTART_MACHINE": "machine.yaml", "PYTHONPATH": str(project.folder)}
    with (project.folder / f"{engine}.log").open("wb") as log:
        return subprocess.Popen(command, cwd=project.folder, env=environment, stdout=log, stderr=log)


def api_servers(project):
    """The vLLM servers that serve the project's model, by start."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            if words[1:3] == ["-m", "vllm.entrypoints.openai.api_server"] and str(project.folder) in process.cwd():
                found.append(process)
        except (psutil.Error, IndexError):
            continue
    return sorted(found, key=lambda process: process.create_time())


def check(project, engine):
    """Every sample once, in the output as in the ledger, although a server was killed."""
    report = json.loads((project.folder / f"reports/{engine}.json").read_text())
    samples = list(iter_table(project.folder / f"data/{engine}/generate", Sample))
    assert report["server_restarts"] == 1 and report["lost"] == 0
    assert (
        len({(s.task_id, s.index) for s in samples}) == len(samples) == report["requested"] == report["requests_sent"]
    )
    assert ledger_rows(project, f"ledger-{engine}") == report["requested"]
    return report


def kill_one_in_the_middle(project, run, engine):
    log = Path(project.folder / f"{engine}.log")
    # One that dies while it still loads is given up and not started again.
    wait_for(lambda: log.read_text().count("ready after") == 2, 900, run)
    wait_for(lambda: ledger_rows(project, f"ledger-{engine}") >= 20, 900, run)
    servers = api_servers(project)
    assert len(servers) == 2
    os.kill(servers[0].pid, signal.SIGKILL)
    assert run.wait(timeout=900) == 0, log.read_text()[-4000:]


def test_two_servers_share_a_queue_and_a_killed_one_loses_and_doubles_nothing(project):
    run = start_generate(project, "local")
    kill_one_in_the_middle(project, run, "local")
    check(project, "local")
    assert project.wait_until_empty() == []


def test_two_slurm_jobs_share_a_queue_and_a_killed_one_loses_and_doubles_nothing(project):
    with two_node_slurm() as cluster:
        run = start_generate(project, "slurm")
        kill_one_in_the_middle(project, run, "slurm")
        check(project, "slurm")
        wait_for_no_jobs(cluster)
    assert project.wait_until_empty() == []


def wait_for_no_jobs(cluster):
    for _ in range(600):
        if not cluster.jobs():
            return
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError(cluster.jobs())

"""Publishing to a Hub: `main` shows the old files or all the new ones, whatever fails, wherever the program dies."""

import itertools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.errors import UserError
from pipeline.hub import upload
from pipeline.hub.upload import Publisher
from tests.hub import USER, Commit, LoopbackHub, blob_of, drop, serving, status

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_" + "z" * 34
REPO = f"{USER}/set"
STEPS = (
    *("whoami", "create_repo", "info", "refs", "tree", "pulls", "open_pull", "one_pull", "validate_yaml", "preupload"),
    *("lfs_batch", "lfs_put", "commit", "commits", "pull_status", "merge", "tag"),
)
"""Every request of a publication."""


@pytest.fixture
def hub(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(upload, "FIRST_WAIT_S", 0.01)
    hurried = SimpleNamespace(**{**vars(time), "sleep": lambda seconds: None})
    monkeypatch.setattr("huggingface_hub.utils._http.time", hurried)
    with serving(LoopbackHub(TOKEN)) as found:
        yield found


@pytest.fixture
def folder(tmp_path):
    """Two shards, a card and a lineage."""
    (tmp_path / "set/data").mkdir(parents=True)
    for name in ("data/train-0.parquet", "data/train-1.parquet", "README.md", "warmstart.json"):
        (tmp_path / "set" / name).write_text(f"---\nlicense: mit\n---\n{name}\n")
    return tmp_path / "set"


def publish(hub, folder, tag="v1", private=True, check=lambda revision: None, deadline_s=30.0):
    return Publisher(REPO, hub.token, deadline_s, hub.url).publish(folder, private, tag, check)


def content_of(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def published(hub) -> dict[str, bytes]:
    return {name: content for name, content in hub.main(REPO).items() if name != ".gitattributes"}


def assert_whole(hub, folder, versions=1):
    """`main` was empty, then each version whole, and nothing else at any moment."""
    assert published(hub) == content_of(folder)
    assert len(hub.main_shows) == 1 + versions
    assert len(hub.main_shows[0]) == 1


def test_main_changes_once_and_is_tagged(hub, folder):
    done = publish(hub, folder)
    assert_whole(hub, folder)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].refs["main"]} == {"v1": done.commit}
    assert done.uploaded_files == 4
    assert not [name for name in hub.requests if name.startswith("unknown") and "agent" not in name]


def test_a_new_repository_is_private_unless_told_otherwise(hub, folder):
    publish(hub, folder)
    assert hub.repos[REPO].private
    hub.repos.clear()
    publish(hub, folder, private=False)
    assert not hub.repos[REPO].private


def test_a_public_repository_is_not_used_where_a_private_one_is_meant(hub, folder):
    publish(hub, folder, private=False)
    with pytest.raises(UserError, match="exists and is public"):
        publish(hub, folder)


def test_the_set_is_looked_at_in_the_pull_request_before_main_changes(hub, folder):
    seen = []
    publish(hub, folder, check=lambda revision: seen.append((revision, dict(published(hub)))))
    assert seen == [("refs/pr/1", {})]


def test_a_set_that_does_not_load_never_reaches_main(hub, folder):
    def broken(revision: str) -> None:
        raise UserError("does not load")

    with pytest.raises(UserError, match="does not load"):
        publish(hub, folder, check=broken)
    assert published(hub) == {} and hub.repos[REPO].tags == {}
    publish(hub, folder)
    assert_whole(hub, folder)
    assert [pull.status for pull in hub.repos[REPO].pulls] == ["merged"]


def test_a_second_run_uploads_nothing(hub, folder):
    publish(hub, folder)
    hub.requests.clear()
    assert publish(hub, folder).uploaded_files == 0
    assert not {"commit", "lfs_put", "preupload", "open_pull", "merge", "tag"} & set(hub.requests)


def test_a_new_version_replaces_the_old_one_whole(hub, folder):
    publish(hub, folder)
    (folder / "data/train-1.parquet").unlink()
    (folder / "README.md").write_text("---\nlicense: mit\n---\nnew\n")
    hub.requests.clear()
    assert publish(hub, folder, tag="v2").uploaded_files == 1
    assert_whole(hub, folder, versions=2)
    assert hub.count("lfs_put") == 0
    assert set(hub.repos[REPO].tags) == {"v1", "v2"}


def test_a_tag_never_moves(hub, folder):
    publish(hub, folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\nnew\n")
    with pytest.raises(UserError, match="the tag v1 stands for other files"):
        publish(hub, folder)
    assert len(hub.main_shows) == 2


def test_files_of_others_outside_the_data_folder_stay(hub, folder):
    publish(hub, folder)
    repo = hub.repos[REPO]
    main = repo.commits[repo.refs["main"]]
    repo.add("main", Commit(main.files | {"LICENSE": b"MIT"}, main.oid, "by hand"))
    (folder / "README.md").write_text("---\nlicense: mit\n---\nnew\n")
    publish(hub, folder, tag="v2")
    assert hub.main(REPO)["LICENSE"] == b"MIT"
    assert published(hub) == content_of(folder) | {"LICENSE": b"MIT"}


@pytest.mark.parametrize("step", STEPS)
def test_a_busy_hub_or_a_lost_connection_at_any_step_does_no_harm(hub, folder, step):
    hub.before[step] = [status(429, **{"Retry-After": "0"}), drop, status(503)]
    hub.after[step] = [drop, status(500)]
    publish(hub, folder)
    assert len(hub.before[step]) < 3
    assert_whole(hub, folder)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].refs["main"]}
    assert [pull.status for pull in hub.repos[REPO].pulls] == ["merged"]


def test_a_commit_of_somebody_else_in_between_is_seen(hub, folder):
    def intrude(found: LoopbackHub):
        repo = found.repos[REPO]
        head = repo.commits[repo.refs["refs/pr/1"]]
        repo.add("refs/pr/1", Commit(head.files | {"data/odd.parquet": b"odd"}, head.oid, "odd"))
        return status(412)(found)

    hub.before["commit"] = [intrude]
    publish(hub, folder)
    assert hub.count("commit") == 2
    assert_whole(hub, folder)


def test_main_that_moved_since_is_not_merged_over(hub, folder):
    def edit(revision: str) -> None:
        repo = hub.repos[REPO]
        main = repo.commits[repo.refs["main"]]
        repo.add("main", Commit(main.files | {"README.md": b"by hand"}, main.oid, "by hand"))

    with pytest.raises(UserError, match="somebody changed main"):
        publish(hub, folder, check=edit)
    assert published(hub) == {"README.md": b"by hand"}
    publish(hub, folder)
    assert published(hub) == content_of(folder)
    assert [pull.status for pull in hub.repos[REPO].pulls] == ["closed", "merged"]


def test_a_change_of_main_during_the_merge_is_told(hub, folder, monkeypatch):
    def intrude(found: LoopbackHub):
        repo = found.repos[REPO]
        main = repo.commits[repo.refs["main"]]
        repo.add("main", Commit(main.files | {"README.md": b"by hand"}, main.oid, "by hand"))
        return status(200)(found)

    monkeypatch.setattr(upload, "SHOWN_WITHIN_S", 0.0)
    hub.after["merge"] = [intrude]
    with pytest.raises(UserError, match="somebody changed main while pull request 1 was merged"):
        publish(hub, folder)
    assert hub.repos[REPO].tags == {}


def test_a_pull_request_changed_by_somebody_is_not_merged(hub, folder):
    def edit(revision: str) -> None:
        repo = hub.repos[REPO]
        head = repo.commits[repo.refs[revision]]
        repo.add(revision, Commit(head.files | {"README.md": b"odd"}, head.oid, "odd"))

    with pytest.raises(UserError, match=r"README\.md was changed in refs/pr/1"):
        publish(hub, folder, check=edit)
    assert published(hub) == {}


def test_a_hub_that_stays_away_is_given_up_at_the_deadline(hub, folder):
    hub.before["refs"] = [status(503)] * 1000
    with pytest.raises(UserError, match=r"could not read the tags within 0\.5 s: .*503.*run the same command again"):
        publish(hub, folder, deadline_s=0.5)


def test_a_refused_token_is_no_reason_to_wait(hub, folder):
    with pytest.raises(UserError, match="the Hub refused to sign in: Invalid user token") as told:
        Publisher(REPO, "hf_" + "y" * 34, 30.0, hub.url).publish(folder, True, "v1", lambda revision: None)
    assert "hf_" not in str(told.value)
    assert hub.requests.count("whoami") == 1


PROGRAM = """
import sys
import time
from pathlib import Path
from pipeline.hub.upload import Publisher
Publisher(sys.argv[1], sys.argv[2], 30.0, sys.argv[3]).publish(Path(sys.argv[4]), True, "v1", lambda revision: None)
"""


@pytest.mark.parametrize(
    ("step", "effect"),
    [("open_pull", "after"), ("lfs_put", "after"), *itertools.product(("commit", "merge", "tag"), ("before", "after"))],
)
def test_a_program_killed_at_any_step_is_completed_by_the_next_run(hub, folder, step, effect):
    running: list[subprocess.Popen] = []

    def kill(found: LoopbackHub) -> None:
        os.kill(running[0].pid, signal.SIGKILL)

    getattr(hub, effect)[step] = [kill]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "HF_HUB_DISABLE_XET": "1"}
    argv = [sys.executable, "-c", PROGRAM, REPO, hub.token, hub.url, str(folder)]
    running.append(subprocess.Popen(argv, env=environment))
    assert running[0].wait() == -signal.SIGKILL
    shown = {frozenset(f"{n} {blob_of(c)}" for n, c in files.items()) for files in (published(hub), content_of(folder))}
    assert len(shown) == (1 if (step, effect) in (("merge", "after"), ("tag", "before"), ("tag", "after")) else 2)
    publish(hub, folder)
    assert_whole(hub, folder)
    assert hub.repos[REPO].tags == {"v1": hub.repos[REPO].refs["main"]}
    assert [pull.status for pull in hub.repos[REPO].pulls] == ["merged"]

"""Publish a folder to the Hub in one visible step: pull request, look at it, merge, tag.

`main` shows the old files or all of the new ones, never some. Every step looks first and acts on what is missing, so a
repeated step (after a lost answer, a 412, a kill) does no harm, and a second run of an equal folder uploads nothing.
"""

import hashlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from pipeline.errors import UserError
from pipeline.progress import say
from pipeline.shards import sha256_of

if TYPE_CHECKING:
    pass

AGAIN = frozenset({408, 409, 412, 425, 429, 500, 502, 503, 504})
"""Statuses after which looking again is right: 409 and 412 say that somebody, perhaps ourselves, was there first."""
FIRST_WAIT_S, LONGEST_WAIT_S = 0.5, 60.0
SHOWN_WITHIN_S = 20.0
"""How long a merge may take to show."""
MARK = "warmstart publish"
DESCRIPTION = "Opened by `warmstart publish`, which merges it once the set has been loaded from here and compared."
DATA = "data/"
"""The folder of a repository that belongs to us: files there that we did not write are deleted."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class LocalFile:
    """A file to publish, named by content in both ways that the Hub does."""

    path: Path
    sha256: str
    blob: str
    """Git's object id."""


@dataclass(frozen=True, slots=True)
class Published:
    """What one run did."""

    commit: str
    """Commit of `main` that holds the files."""
    uploaded_files: int
    """Files that `main` did not have before."""


def local_files(folder: Path) -> dict[str, LocalFile]:
    """The files of a folder by path."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            found[path.relative_to(folder).as_posix()] = LocalFile(path, sha256_of(path), _git_blob(path))
    return found


def _git_blob(path: Path) -> str:
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def digest_of_files(files: Mapping[str, LocalFile]) -> str:
    """Short name of a folder's content."""
    lines = "".join(f"{name} {file.sha256}\n" for name, file in sorted(files.items()))
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


class Publisher:
    """One dataset repository, and patience with it."""

    def __init__(self, repo_id: str, token: str, deadline_s: float, endpoint: str | None = None) -> None:
        from huggingface_hub import HfApi, constants

        if constants.HF_HUB_OFFLINE:
            raise UserError("HF_HUB_OFFLINE is set, so nothing can be published to the Hub; unset it")
        self._api: HfApi = HfApi(endpoint=endpoint, token=token, library_name="warmstart")
        self._deadline_s = deadline_s
        self._repo: dict[str, Any] = {"repo_id": repo_id, "repo_type": "dataset"}
        self.repo_id = repo_id

    def publish(self, folder: Path, private: bool, tag: str, check: Callable[[str], None]) -> Published:
        """Bring `main` to the folder's content and tag it.

        `check(revision)` looks at the pull request before it is merged and raises if anything is amiss. Raises
        UserError where the Hub refuses, the deadline of a step passes, or the tag stands for other files.
        """
        files = local_files(folder)
        user = self._patiently("sign in", lambda: str(self._api.whoami()["name"]))
        self._patiently("create the repository", partial(self._create, private))
        tagged = self._patiently("read the tags", partial(self._tag_commit, tag))
        if tagged and self._patiently("read the tag", partial(self._differing, files, tag)):
            raise UserError(
                f"{self.repo_id}: the tag {tag} stands for other files; a published version never changes, so set "
                "`tag` to the next one"
            )
        missing = self._patiently("read main", partial(self._differing, files, "main"))
        if missing:
            self._replace_main(files, user, f"{MARK} {tag} ({digest_of_files(files)})", check)
        else:
            say(f"publish: main of {self.repo_id} has these files already")
        commit = self._patiently("read main", partial(self._head, "main"))
        self._patiently(f"tag {tag}", partial(self._tag_once, tag, commit))
        return Published(commit, sum(1 for name in missing if name in files))

    def _replace_main(
        self, files: Mapping[str, LocalFile], user: str, title: str, check: Callable[[str], None]
    ) -> None:
        number = self._patiently("open a pull request", partial(self._open_once, user, title))
        revision = f"refs/pr/{number}"
        say(f"publish: uploading to {revision} of {self.repo_id}")
        self._patiently("upload", partial(self._commit_once, files, revision, title))
        check(revision)
        self._patiently("merge", partial(self._merge_once, files, number, revision))
        shown_by = time.monotonic() + SHOWN_WITHIN_S
        while self._patiently("read main", partial(self._differing, files, "main")):
            if time.monotonic() > shown_by:
                raise UserError(
                    f"{self.repo_id}: somebody changed main while pull request {number} was merged; run publish again"
                )
            time.sleep(FIRST_WAIT_S)

    def _create(self, private: bool) -> None:
        self._api.create_repo(**self._repo, private=private, exist_ok=True)
        found = self._api.dataset_info(self.repo_id).private
        if bool(found) != private:
            raise UserError(
                f"{self.repo_id}: exists and is {'private' if found else 'public'}, but the config says private: "
                f"{str(private).lower()}; change one of the two by hand"
            )

    def _head(self, revision: str) -> str:
        return str(self._api.dataset_info(self.repo_id, revision=revision).sha)

    def _tag_commit(self, tag: str) -> str | None:
        tags = self._api.list_repo_refs(**self._repo).tags
        return next((ref.target_commit for ref in tags if ref.name == tag), None)

    def _differing(self, files: Mapping[str, LocalFile], revision: str) -> list[str]:
        """Paths that a revision lacks, has otherwise, or has too many of below `data/`."""
        from huggingface_hub import RepoFile

        tree = self._api.list_repo_tree(**self._repo, revision=revision, recursive=True)
        there = {entry.path: entry for entry in tree if isinstance(entry, RepoFile)}
        differing = [name for name in there if name.startswith(DATA) and name not in files]
        for name, file in files.items():
            entry = there.get(name)
            same = entry and (entry.lfs.sha256 == file.sha256 if entry.lfs else entry.blob_id == file.blob)
            if not same:
                differing.append(name)
        return differing

    def _open_once(self, user: str, title: str) -> int:
        """Our pull request of this title that starts from main as it is, opened if there is none.

        Those that an earlier, interrupted run left are closed.
        """
        found = None
        for pull in list(self._api.get_repo_discussions(**self._repo, discussion_type="pull_request", author=user)):
            if pull.status not in ("open", "draft") or not pull.title.startswith(MARK):
                continue
            if found is None and pull.title == title and self._starts_from_main(f"refs/pr/{pull.num}"):
                found = pull.num
            else:
                self._api.change_discussion_status(**self._repo, discussion_num=pull.num, new_status="closed")
        if found is None:
            found = self._api.create_pull_request(**self._repo, title=title, description=DESCRIPTION).num
        return found

    def _starts_from_main(self, revision: str) -> bool:
        main = self._head("main")
        return any(commit.commit_id == main for commit in self._api.list_repo_commits(**self._repo, revision=revision))

    def _commit_once(self, files: Mapping[str, LocalFile], revision: str, title: str) -> None:
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        head = self._head(revision)
        differing = self._differing(files, revision)
        if not differing:
            return
        additions = [CommitOperationAdd(name, files[name].path) for name in differing if name in files]
        deletions = [CommitOperationDelete(name) for name in differing if name not in files]
        self._api.create_commit(
            **self._repo,
            operations=[*additions, *deletions],
            commit_message=title,
            revision=revision,
            parent_commit=head,
        )

    def _merge_once(self, files: Mapping[str, LocalFile], number: int, revision: str) -> None:
        pulls = self._api.get_repo_discussions(**self._repo, discussion_type="pull_request")
        status = next((pull.status for pull in pulls if pull.num == number), None)
        if status == "merged":
            return
        if not self._starts_from_main(revision):
            raise UserError(f"{self.repo_id}: somebody changed main since {revision} was opened; run publish again")
        if differing := self._differing(files, revision):
            raise UserError(f"{self.repo_id}: {differing[0]} was changed in {revision} by somebody; run publish again")
        if status == "draft":  # as the Hub opens them for a program
            self._api.change_discussion_status(**self._repo, discussion_num=number, new_status="open")
        self._api.merge_pull_request(**self._repo, discussion_num=number)

    def _tag_once(self, tag: str, commit: str) -> None:
        if self._tag_commit(tag) is None:
            self._api.create_tag(**self._repo, tag=tag, revision=commit)

    def _patiently(self, step: str, act: Callable[[], T]) -> T:
        """Repeat a step while the Hub is busy or unreachable, until its deadline."""
        from httpx2 import HTTPError
        from huggingface_hub.errors import HfHubHTTPError

        deadline = time.monotonic() + self._deadline_s
        wait = FIRST_WAIT_S
        while True:
            try:
                return act()
            except (HTTPError, RuntimeError) as error:
                cause = _http_error(error)
                if cause is None:
                    raise
                status = cause.response.status_code if isinstance(cause, HfHubHTTPError) else None
                if status is not None and status not in AGAIN:
                    raise UserError(f"{self.repo_id}: the Hub refused to {step}: {_first_line(cause)}") from None
                pause = max(wait, _retry_after(cause))
                if time.monotonic() + pause > deadline:
                    raise UserError(
                        f"{self.repo_id}: could not {step} within {self._deadline_s:g} s: {_first_line(cause)}; "
                        "run the same command again, what is uploaded stays"
                    ) from None
            say(f"publish: {step}: {status or type(cause).__name__}, again in {pause:.1f} s")
            time.sleep(pause)
            wait = min(2 * wait, LONGEST_WAIT_S)


def _http_error(error: BaseException) -> Any:  # noqa: ANN401 - an httpx2.HTTPError or None
    """The HTTP error at the root; the uploads of large files wrap theirs in a RuntimeError."""
    from httpx2 import HTTPError

    found: BaseException | None = error
    while found is not None and not isinstance(found, HTTPError):
        found = found.__cause__
    return found


def _retry_after(error: Any) -> float:  # noqa: ANN401 - an httpx2.HTTPError
    response = getattr(error, "response", None)
    value = response.headers.get("retry-after", "") if response is not None else ""
    return min(float(value), LONGEST_WAIT_S) if value.isdecimal() else 0.0


def _first_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__

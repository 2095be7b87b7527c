"""A loopback server that speaks the part of the Hub's protocol that publishing and loading use: for tests only.

It keeps commits by content, notes what `main` shows after every request, and fails where a test tells it to.
"""

import base64
import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from aiohttp import web

from tests.loopback import on_loopback

DATE = "2026-01-01T00:00:00.000Z"
USER = "tester"
LFS_ENDINGS = (".parquet",)


def blob_of(content: bytes) -> str:
    """Git's id of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Commit:
    """A whole tree and where it came from."""

    files: dict[str, bytes]
    parent: str | None
    title: str

    @property
    def oid(self) -> str:
        listing = sorted((name, blob_of(content)) for name, content in self.files.items())
        return hashlib.sha1(json.dumps([listing, self.parent, self.title]).encode()).hexdigest()


@dataclass
class Pull:
    """A pull request."""

    num: int
    title: str
    status: str = "draft"


@dataclass
class Repo:
    """A dataset repository."""

    private: bool
    commits: dict[str, Commit] = field(default_factory=dict)
    refs: dict[str, str] = field(default_factory=dict)
    tags: dict[str, str] = field(default_factory=dict)
    pulls: list[Pull] = field(default_factory=list)

    def add(self, ref: str, commit: Commit) -> str:
        self.commits[commit.oid] = commit
        self.refs[ref] = commit.oid
        return commit.oid

    def find(self, revision: str) -> str | None:
        """Commit id of a branch, pull request, tag or commit."""
        found = self.refs.get(revision) or self.tags.get(revision) or revision
        return found if found in self.commits else None

    def ancestors(self, oid: str | None) -> Iterator[str]:
        while oid is not None:
            yield oid
            oid = self.commits[oid].parent


HUB: web.AppKey["LoopbackHub"] = web.AppKey("hub")
Fault = Callable[["LoopbackHub"], web.Response | None]
"""Called in place of the answer to a request; None drops the connection."""


def status(code: int, **headers: str) -> Fault:
    """Answer with a status."""
    return lambda hub: web.json_response({"error": f"injected {code}"}, status=code, headers=headers)


def drop(hub: "LoopbackHub") -> None:
    """Close the connection without an answer."""


@dataclass
class LoopbackHub:
    """The server's state, open to tests."""

    token: str
    repos: dict[str, Repo] = field(default_factory=dict)
    large: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    """Operations in order, such as `commit` or `merge`."""
    main_shows: list[frozenset[str]] = field(default_factory=list)
    """Files of `main` with their blob ids, noted after every request where they changed."""
    before: dict[str, list[Fault]] = field(default_factory=dict)
    """Faults by operation, used up in order; the request has no effect."""
    after: dict[str, list[Fault]] = field(default_factory=dict)
    """The same, but the request has its effect and only the answer is lost."""
    unauthorised: int = 0
    url: str = ""

    def count(self, operation: str) -> int:
        return self.requests.count(operation)

    def main(self, repo_id: str) -> dict[str, bytes]:
        repo = self.repos[repo_id]
        return repo.commits[repo.refs["main"]].files

    def note_main(self) -> None:
        for repo in self.repos.values():
            files = repo.commits[repo.refs["main"]].files
            shown = frozenset(f"{name} {blob_of(content)}" for name, content in files.items())
            if not self.main_shows or self.main_shows[-1] != shown:
                self.main_shows.append(shown)


def handler(operation: str, answer):
    """Wrap an operation with sign-in, faults and the record of main."""

    async def handle(request: web.Request) -> web.StreamResponse:
        hub: LoopbackHub = request.app[HUB]
        hub.requests.append(operation)
        if request.headers.get("authorization") != f"Bearer {hub.token}" and operation != "lfs_put":
            hub.unauthorised += 1
            return web.json_response({"error": "sign in"}, status=401)
        faults = hub.before.get(operation, [])
        lost = hub.after.get(operation, []) if not faults else []
        if not faults:
            response = await answer(hub, request)
            hub.note_main()
        if faults or lost:
            response = (faults or lost).pop(0)(hub)
        if response is None:
            request.transport.abort()
            return web.Response()
        return response

    return handle


def missing(what: str) -> web.Response:
    return web.json_response({"error": f"{what} not found"}, status=404, headers={"X-Error-Code": f"{what}NotFound"})


def in_repo(answer):
    """An operation on a repository, and on a revision where the path has one."""

    async def handle(hub: LoopbackHub, request: web.Request) -> web.Response:
        repo = hub.repos.get(request.match_info["repo_id"])
        if repo is None:
            return missing("Repo")
        if "revision" in request.match_info:
            oid = repo.find(request.match_info["revision"])
            if oid is None:
                return missing("Revision")
            return await answer(hub, request, repo, oid)
        return await answer(hub, request, repo, repo.refs["main"])

    return handle


async def whoami(hub: LoopbackHub, request: web.Request) -> web.Response:
    return web.json_response({"type": "user", "name": USER, "auth": {"type": "access_token"}})


async def create_repo(hub: LoopbackHub, request: web.Request) -> web.Response:
    body = await request.json()
    repo_id = f"{body.get('organization') or USER}/{body['name']}"
    answer = {"url": f"{hub.url}/datasets/{repo_id}"}
    if repo_id in hub.repos:
        return web.json_response(answer | {"error": "exists"}, status=409)
    repo = hub.repos[repo_id] = Repo(private=body.get("visibility") == "private")
    repo.add("main", Commit({".gitattributes": b"*.parquet filter=lfs\n"}, None, "initial commit"))
    return web.json_response(answer)


async def validate_yaml(hub: LoopbackHub, request: web.Request) -> web.Response:
    return web.json_response({"errors": [], "warnings": []})


async def info(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    siblings = [{"rfilename": name} for name in sorted(repo.commits[oid].files)]
    repo_id = request.match_info["repo_id"]
    return web.json_response({"id": repo_id, "sha": oid, "private": repo.private, "siblings": siblings, "tags": []})


def entry_of(name: str, content: bytes) -> dict:
    entry = {"type": "file", "path": name, "size": len(content), "oid": blob_of(content)}
    if name.endswith(LFS_ENDINGS):
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


async def tree(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    folder = request.match_info.get("path", "").strip("/")
    recursive = request.query.get("recursive", "false").lower() == "true"
    prefix = f"{folder}/" if folder else ""
    files = {name: c for name, c in repo.commits[oid].files.items() if name.startswith(prefix)}
    if not files:
        return missing("Entry")
    folders = {prefix + name[len(prefix) :].split("/")[0] for name in files if "/" in name[len(prefix) :]}
    entries = [{"type": "directory", "path": name, "oid": "0" * 40, "size": 0} for name in sorted(folders)]
    shown = {name: c for name, c in files.items() if recursive or "/" not in name[len(prefix) :]}
    return web.json_response(entries + [entry_of(name, content) for name, content in sorted(shown.items())])


async def paths_info(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    body = await request.post() if "form" in request.content_type else await request.json()
    paths = body.getall("paths") if hasattr(body, "getall") else body["paths"]
    files = repo.commits[oid].files
    entries = [entry_of(path, files[path]) for path in paths if path in files]
    folders = [path for path in paths if any(name.startswith(f"{path}/") for name in files)]
    entries += [{"type": "directory", "path": path, "oid": "0" * 40, "size": 0} for path in folders]
    return web.json_response(entries)


async def preupload(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    def mode(name: str) -> str:
        return "lfs" if name.endswith(LFS_ENDINGS) else "regular"

    names = [entry["path"] for entry in (await request.json())["files"]]
    return web.json_response({"files": [{"path": n, "uploadMode": mode(n), "shouldIgnore": False} for n in names]})


async def lfs_batch(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    objects = []
    for wanted in (await request.json())["objects"]:
        answer = {"oid": wanted["oid"], "size": wanted["size"]}
        if wanted["oid"] not in hub.large:
            answer["actions"] = {"upload": {"href": f"{hub.url}/lfs/{wanted['oid']}", "header": {}}}
        objects.append(answer)
    return web.json_response({"transfer": "basic", "objects": objects})


async def lfs_put(hub: LoopbackHub, request: web.Request) -> web.Response:
    content = await request.read()
    oid = request.match_info["oid"]
    if hashlib.sha256(content).hexdigest() != oid:
        return web.Response(status=400)
    hub.large[oid] = content
    return web.Response()


async def commit(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    lines = [json.loads(line) for line in (await request.read()).splitlines() if line.strip()]
    header = lines[0]["value"]
    if header.get("parentCommit", oid) != oid:
        return web.json_response({"error": "A commit has happened since. Please refresh."}, status=412)
    files = dict(repo.commits[oid].files)
    for line in lines[1:]:
        value = line["value"]
        if line["key"] == "file":
            files[value["path"]] = base64.b64decode(value["content"])
        elif line["key"] == "lfsFile":
            files[value["path"]] = hub.large[value["oid"]]
        else:
            del files[value["path"]]
    new = repo.add(request.match_info["revision"], Commit(files, oid, header["summary"]))
    url = f"{hub.url}/datasets/{request.match_info['repo_id']}/commit/{new}"
    return web.json_response({"success": True, "commitOid": new, "commitUrl": url, "hookOutput": ""})


async def refs(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    def listed(found: dict[str, str], kind: str) -> list[dict]:
        return [{"name": n, "ref": f"refs/{kind}/{n}", "targetCommit": c} for n, c in found.items()]

    branches = {name: c for name, c in repo.refs.items() if not name.startswith("refs/")}
    return web.json_response({"branches": listed(branches, "heads"), "tags": listed(repo.tags, "tags"), "converts": []})


async def commits(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    def listed(name: str) -> dict:
        return {"id": name, "authors": [{"user": USER}], "date": DATE, "title": repo.commits[name].title, "message": ""}

    return web.json_response([listed(name) for name in repo.ancestors(oid)])


async def tag(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    name = (await request.json())["tag"]
    if name in repo.tags:
        return web.json_response({"error": "Tag exists"}, status=409)
    repo.tags[name] = oid
    return web.json_response({})


def listed_pull(pull: Pull, repo_id: str) -> dict:
    return {
        "title": pull.title,
        "num": pull.num,
        "author": {"name": USER},
        "createdAt": DATE,
        "status": pull.status,
        "repo": {"name": repo_id, "type": "dataset"},
        "isPullRequest": True,
    }


async def pulls(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    repo_id = request.match_info["repo_id"]
    found = [listed_pull(pull, repo_id) for pull in reversed(repo.pulls)]
    return web.json_response({"count": len(found), "start": 0, "discussions": found})


async def open_pull(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    pull = Pull(len(repo.pulls) + 1, (await request.json())["title"])
    repo.pulls.append(pull)
    repo.refs[f"refs/pr/{pull.num}"] = oid
    return web.json_response({"num": pull.num})


async def one_pull(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    repo_id = request.match_info["repo_id"]
    pull = repo.pulls[int(request.match_info["num"]) - 1]
    changes = {"base": "refs/heads/main"}
    return web.json_response(
        listed_pull(pull, repo_id) | {"changes": changes, "filesWithConflicts": [], "events": [], "diff": ""}
    )


async def pull_status(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    pull = repo.pulls[int(request.match_info["num"]) - 1]
    pull.status = (await request.json())["status"]
    event = {"id": "1", "type": "status-change", "createdAt": DATE, "author": {"name": USER}}
    return web.json_response({"newStatus": event | {"data": {"status": pull.status}}})


async def merge(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    pull = repo.pulls[int(request.match_info["num"]) - 1]
    if pull.status != "open":
        return web.json_response({"error": f"a pull request that is {pull.status} cannot be merged"}, status=400)
    head = repo.commits[repo.refs[f"refs/pr/{pull.num}"]]
    repo.add("main", Commit(head.files, repo.refs["main"], f"{pull.title} (#{pull.num})"))
    pull.status = "merged"
    return web.json_response({})


async def resolve(hub: LoopbackHub, request: web.Request, repo: Repo, oid: str) -> web.Response:
    content = repo.commits[oid].files.get(request.match_info["path"])
    if content is None:
        return missing("Entry")
    name = request.match_info["path"]
    etag = hashlib.sha256(content).hexdigest() if name.endswith(LFS_ENDINGS) else blob_of(content)
    headers = {"ETag": f'"{etag}"', "X-Repo-Commit": oid, "Accept-Ranges": "bytes"}
    chosen = request.http_range
    if chosen.start is None and chosen.stop is None:
        return web.Response(body=content, headers=headers)
    first, last = chosen.start or 0, min(chosen.stop or len(content), len(content))
    headers["Content-Range"] = f"bytes {first}-{last - 1}/{len(content)}"
    return web.Response(status=206, body=content[first:last], headers=headers)


API = "/api/datasets/{repo_id:[^/]+/[^/]+}"
ROUTES = (
    ("GET", "/api/whoami-v2", "whoami", whoami),
    ("POST", "/api/repos/create", "create_repo", create_repo),
    ("POST", "/api/validate-yaml", "validate_yaml", validate_yaml),
    ("PUT", "/lfs/{oid}", "lfs_put", lfs_put),
    ("GET", API, "info", in_repo(info)),
    ("GET", API + "/revision/{revision}", "info", in_repo(info)),
    ("GET", API + "/tree/{revision}", "tree", in_repo(tree)),
    ("GET", API + "/tree/{revision}/{path:.*}", "tree", in_repo(tree)),
    ("POST", API + "/paths-info/{revision}", "paths_info", in_repo(paths_info)),
    ("POST", API + "/preupload/{revision}", "preupload", in_repo(preupload)),
    ("POST", "/datasets/{repo_id:[^/]+/[^/]+}.git/info/lfs/objects/batch", "lfs_batch", in_repo(lfs_batch)),
    ("POST", API + "/commit/{revision}", "commit", in_repo(commit)),
    ("GET", API + "/refs", "refs", in_repo(refs)),
    ("GET", API + "/commits/{revision}", "commits", in_repo(commits)),
    ("POST", API + "/tag/{revision}", "tag", in_repo(tag)),
    ("GET", API + "/discussions", "pulls", in_repo(pulls)),
    ("POST", API + "/discussions", "open_pull", in_repo(open_pull)),
    ("GET", API + "/discussions/{num}", "one_pull", in_repo(one_pull)),
    ("POST", API + "/discussions/{num}/status", "pull_status", in_repo(pull_status)),
    ("POST", API + "/discussions/{num}/merge", "merge", in_repo(merge)),
    ("GET", "/datasets/{repo_id:[^/]+/[^/]+}/resolve/{revision}/{path:.+}", "resolve", in_repo(resolve)),
)


@contextmanager
def serving(hub: LoopbackHub) -> Iterator[LoopbackHub]:
    """Serve on a free loopback port from a thread of its own."""

    async def unknown(request: web.Request) -> web.Response:
        hub.requests.append(f"unknown {request.method} {request.path}")
        return web.json_response({"error": "not spoken here"}, status=404)

    app = web.Application(client_max_size=1 << 30)
    app[HUB] = hub
    for method, path, operation, answer in ROUTES:
        app.router.add_route(method, path, handler(operation, answer))
        if method == "GET":
            app.router.add_route("HEAD", path, handler(operation, answer))
    app.router.add_route("*", "/{rest:.*}", unknown)
    with on_loopback(app) as hub.url:
        yield hub

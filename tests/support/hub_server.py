"""A local server of the Hugging Face hub's shape, for tests: folders served as repositories.

It answers what `huggingface_hub`, `datasets` and `transformers` ask when they download (repository information,
file trees, files with commit, entity tag and byte ranges) and, for those who have a token, when they upload: new
repositories, which files are large, large files by git LFS, commits. The hub's newer way for large files (Xet) is not
spoken; clients are told to do without by HF_HUB_DISABLE_XET.
`<root>/<kind>/<org>/<name>/<branch>/` is one branch of a repository, with `kind` being `models` or `datasets`
and slashes in the branch written as `+`.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

LARGE = re.compile(r"\.(safetensors|bin|model)$")
"""Files that go by LFS."""
WRITE, READ = "hf_aTokenThatMayWrite", "hf_aTokenThatMayRead"
"""Tokens of `me`, who is a member of `team`."""


class NotThereError(Exception):
    """What the hub answers with 404 and a code in a header."""


class RefusedError(Exception):
    """What the hub answers with another status and a message."""

    def __init__(self, status: int, message: str, **more: str) -> None:
        super().__init__(message)
        self.status = status
        self.answer = {"error": message} | more


class DroppedError(Exception):
    """The connection ends without an answer."""


class Hub(ThreadingHTTPServer):
    """Serves `root` on a free port of this machine."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[str] = []
        """Every request, as `METHOD path`."""
        self.fault: Callable[[str], None] = lambda request: None
        """Called with every request; may raise `RefusedError` or `DroppedError`."""
        self.private: set[str] = set()
        """Repositories, as `models/org/name`, that were made so."""
        self.commits: list[dict[str, Any]] = []
        """What was committed: `repo`, `summary`, `added`, `deleted`."""
        self.objects: dict[str, bytes] = {}
        """Large files that were uploaded, by their hash."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def branch(self, repo: str, revision: str) -> tuple[Path, str]:
        """Folder and commit of a branch, or of the branch that has the commit."""
        folder = self.root / repo
        if not folder.is_dir():
            raise NotThereError("RepoNotFound")
        for place in sorted(folder.iterdir()):
            commit = hashlib.sha1(place.name.encode() + b"".join(_listing(place))).hexdigest()
            if revision in (place.name.replace("+", "/"), commit):
                return place, commit
        raise NotThereError("RevisionNotFound")

    def create(self, repo: str, *, private: bool) -> None:
        """A repository with what the hub puts in every new one."""
        folder = self.root / repo / "main"
        if folder.exists():
            url = f"{self.url}/{repo.split('/', 1)[1]}"
            raise RefusedError(409, "You already created this model repo", url=url)
        folder.mkdir(parents=True)
        (folder / ".gitattributes").write_text("*.safetensors filter=lfs diff=lfs merge=lfs -text\n")
        if private:
            self.private.add(repo)

    def commit(self, repo: str, branch: Path, lines: list[dict[str, Any]]) -> None:
        added: dict[str, bytes] = {}
        deleted = [line["value"]["path"] for line in lines if line["key"] == "deletedFile"]
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                added[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                added[value["path"]] = self.objects[value["oid"]]
        for path in deleted:
            (branch / path).unlink()
        for path, content in added.items():
            (branch / path).parent.mkdir(parents=True, exist_ok=True)
            (branch / path).write_bytes(content)
        summary = next(line["value"]["summary"] for line in lines if line["key"] == "header")
        self.commits.append(
            {"repo": repo, "summary": summary, "added": sorted(added), "deleted": sorted(deleted)}
        )


def _listing(folder: Path) -> list[bytes]:
    return [
        f"{path.relative_to(folder)}:{_oid(path) if path.is_file() else ''}".encode()
        for path in sorted(folder.rglob("*"))
    ]


def _oid(path: Path) -> str:
    """What git calls a file's content, or LFS a large file's."""
    content = path.read_bytes()
    if LARGE.search(path.name):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    if path.is_dir():
        return {"type": "directory", "oid": hashlib.sha1(name.encode()).hexdigest(), "size": 0, "path": name}
    return {"type": "file", "oid": _oid(path), "size": path.stat().st_size, "path": name}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        """Tests read `Hub.requests` instead."""

    def do_GET(self) -> None:
        request = f"{self.command} {self.path}"
        self.server.requests.append(request)
        # Before anything is refused: what is left of a body is read as the next request of its connection.
        body = self._body()
        try:
            self.server.fault(request)
            self._route(urlsplit(self.path).path, body)
        except NotThereError as error:
            self._send(404, json.dumps({"error": str(error)}).encode(), {"X-Error-Code": str(error)})
        except RefusedError as error:
            self._send(error.status, json.dumps(error.answer).encode(), {"Content-Type": "application/json"})
        except DroppedError:
            self.close_connection = True
            self.connection.close()

    do_HEAD = do_POST = do_PUT = do_GET  # noqa: N815

    def _body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _route(self, path: str, body: bytes) -> None:
        if path == "/api/repos/create":
            self._send_json(self._create(json.loads(body)))
        elif path == "/api/validate-yaml":  # the hub's own check of a README
            self._send_json({"errors": [], "warnings": []})
        elif lfs := re.fullmatch(r"/(.+)\.git/info/lfs/objects/batch", path):
            self._members_only(f"models/{lfs[1]}")
            self._send_json(self._lfs_batch(json.loads(body)))
        elif (lfs := re.fullmatch(r"/lfs/([0-9a-f]{64})", path)) and self.command == "PUT":
            self.server.objects[lfs[1]] = body
            self._send_json({})
        elif api := re.fullmatch(
            r"/api/(models|datasets)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.*))?)?)?", path
        ):
            kind, name, *rest = (unquote(part or "") for part in api.groups())
            self._send_json(self._api(f"{kind}/{name}", rest[0], rest[1] or "main", rest[2], body))
        elif file := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            kind, name, revision, inside = (unquote(part or "") for part in file.groups())
            self._send_file(f"{kind or 'models/'}{name}", revision, inside)
        else:
            raise NotThereError("EntryNotFound")

    def _members_only(self, repo: str) -> None:
        """Raise where the token may not write to a repository's namespace."""
        token = (self.headers.get("Authorization") or "").removeprefix("Bearer ")
        if token not in (WRITE, READ):
            raise RefusedError(401, "Invalid username or password.")
        if token != WRITE or repo.split("/")[1] not in ("me", "team"):
            raise RefusedError(403, "You don't have the rights to do that here")

    def _create(self, asked: dict[str, Any]) -> dict[str, str]:
        name = f"{asked.get('organization') or 'me'}/{asked['name']}"
        self._members_only(f"models/{name}")
        self.server.create(f"models/{name}", private=asked.get("visibility") == "private")
        return {"url": f"{self.server.url}/{name}"}

    def _lfs_batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        def answer(entry: dict[str, Any]) -> dict[str, Any]:
            if entry["oid"] in self.server.objects:
                return dict(entry)
            return entry | {"actions": {"upload": {"href": f"{self.server.url}/lfs/{entry['oid']}"}}}

        return {"transfer": "basic", "objects": [answer(entry) for entry in asked["objects"]]}

    def _api(self, repo: str, what: str, revision: str, inside: str, body: bytes) -> Any:
        folder, commit = self.server.branch(repo, revision)
        if what in ("preupload", "commit"):
            self._members_only(repo)
            return self._change(repo, folder, what, body)
        if what in ("", "revision"):
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files]
            name = repo.split("/", 1)[1]
            return {
                "id": name,
                "sha": commit,
                "siblings": siblings,
                "private": repo in self.server.private,
                "tags": [],
                "gated": False,
            }
        if what == "tree":
            place = folder / inside
            if not place.is_dir():
                raise NotThereError("EntryNotFound")
            deep = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
            return [_entry(folder, path) for path in sorted(place.rglob("*") if deep else place.iterdir())]
        raise NotThereError("EntryNotFound")

    def _change(self, repo: str, folder: Path, what: str, body: bytes) -> dict[str, Any]:
        if what == "preupload":
            return {
                "files": [
                    {
                        "path": file["path"],
                        "uploadMode": "lfs" if LARGE.search(file["path"]) else "regular",
                        "shouldIgnore": False,
                        "oid": _oid(folder / file["path"]) if (folder / file["path"]).is_file() else None,
                    }
                    for file in json.loads(body)["files"]
                ]
            }
        self.server.commit(repo, folder, [json.loads(line) for line in body.splitlines()])
        commit = self.server.branch(repo, "main")[1]
        name = repo.split("/", 1)[1]
        return {
            "success": True,
            "commitOid": commit,
            "commitUrl": f"{self.server.url}/{name}/commit/{commit}",
        }

    def _send_file(self, repo: str, revision: str, inside: str) -> None:
        folder, commit = self.server.branch(repo, revision)
        path = folder / inside
        if not path.is_file():
            raise NotThereError("EntryNotFound")
        content = path.read_bytes()
        headers = {
            "X-Repo-Commit": commit,
            "ETag": f'"{hashlib.sha1(content).hexdigest()}"',
            "Accept-Ranges": "bytes",
        }
        status = 200
        if part := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or ""):
            first, last = int(part[1]), min(int(part[2] or len(content) - 1), len(content) - 1)
            headers["Content-Range"] = f"bytes {first}-{last}/{len(content)}"
            content, status = content[first : last + 1], 206
        self._send(status, content, headers)

    def _send_json(self, value: Any) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (headers | {"Content-Length": str(len(content))}).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)


@contextmanager
def serve(root: Path) -> Iterator[Hub]:
    """A hub with the repositories below `root`, for as long as the block runs."""
    hub = Hub(root)
    thread = threading.Thread(target=hub.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        hub.shutdown()
        hub.server_close()
        thread.join()

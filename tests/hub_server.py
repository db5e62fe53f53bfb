"""A local server of the Hugging Face hub's shape, for tests: folders served as repositories.

It answers what `huggingface_hub`, `datasets` and `transformers` ask when they download: repository
information, file trees, paths, and files with commit, entity tag and byte ranges.
`<root>/<kind>/<org>/<name>/<branch>/` is one branch of a repository, with `kind` being `models` or `datasets`
and slashes in the branch written as `+`.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit


class NotThereError(Exception):
    """What the hub answers with 404 and a code in a header."""


class Hub(ThreadingHTTPServer):
    """Serves `root` on a free port of this machine."""

    daemon_threads = True

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.root = root
        self.requests: list[str] = []
        """Every request, as `METHOD path`."""

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


def _listing(folder: Path) -> list[bytes]:
    return [
        f"{path.relative_to(folder)}:{path.stat().st_size}".encode() for path in sorted(folder.rglob("*"))
    ]


def _entry(folder: Path, path: Path) -> dict[str, Any]:
    name = path.relative_to(folder).as_posix()
    oid = hashlib.sha1(name.encode() if path.is_dir() else path.read_bytes()).hexdigest()
    if path.is_dir():
        return {"type": "directory", "oid": oid, "size": 0, "path": name}
    return {"type": "file", "oid": oid, "size": path.stat().st_size, "path": name}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_: object) -> None:
        """Tests read `Hub.requests` instead."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.requests.append(f"{self.command} {self.path}")
        path = urlsplit(self.path).path
        try:
            if api := re.fullmatch(
                r"/api/(models|datasets)/([^/]+/[^/]+)(?:/([a-z-]+)(?:/([^/]+)(?:/(.*))?)?)?", path
            ):
                kind, name, *rest = (unquote(part or "") for part in api.groups())
                self._send_json(self._api(f"{kind}/{name}", rest[0], rest[1] or "main", rest[2], body))
            elif file := re.fullmatch(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                kind, name, revision, inside = (unquote(part or "") for part in file.groups())
                self._send_file(f"{kind or 'models/'}{name}", revision, inside)
            else:
                raise NotThereError("EntryNotFound")
        except NotThereError as error:
            self._send(404, json.dumps({"error": str(error)}).encode(), {"X-Error-Code": str(error)})

    def _api(self, repo: str, what: str, revision: str, inside: str, body: bytes) -> Any:
        folder, commit = self.server.branch(repo, revision)
        if what in ("", "revision"):
            files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
            siblings = [{"rfilename": path.relative_to(folder).as_posix()} for path in files]
            name = repo.split("/", 1)[1]
            return {
                "id": name,
                "sha": commit,
                "siblings": siblings,
                "private": False,
                "tags": [],
                "gated": False,
            }
        if what == "tree":
            place = folder / inside
            if not place.is_dir():
                raise NotThereError("EntryNotFound")
            deep = parse_qs(urlsplit(self.path).query).get("recursive", ["false"])[0].lower() == "true"
            return [_entry(folder, path) for path in sorted(place.rglob("*") if deep else place.iterdir())]
        if what == "paths-info":
            text = body.decode()
            paths = json.loads(text)["paths"] if text.startswith("{") else parse_qs(text).get("paths", [])
            return [_entry(folder, folder / name) for name in paths if (folder / name).exists()]
        if what == "refs":
            return {
                "branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": commit}],
                "tags": [],
            }
        raise NotThereError("EntryNotFound")

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

"""A server that speaks as much of Google Cloud Storage's JSON API as a lease and a stream need, with its preconditions.

One bucket, objects in memory: metadata, lists, downloads (of ranges too), multipart upload, deletion, all but lists
with `ifGenerationMatch`.
"""

from __future__ import annotations

import contextlib
import datetime
import email
import itertools
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


class GcsServer(ThreadingHTTPServer):
    """Serves until `shutdown`."""

    daemon_threads = True

    def __init__(self, bucket: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.bucket = bucket
        self.objects: dict[str, tuple[int, bytes, dict[str, Any]]] = {}
        """Generation, content and metadata by name."""
        self.lock = threading.Lock()
        self.generations = itertools.count(1_700_000_000_000_000)

    def put(self, name: str, content: bytes) -> dict[str, Any]:
        """Keep an object; its metadata."""
        generation = next(self.generations)
        now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        told = {"name": name, "bucket": self.bucket, "generation": str(generation)}
        told |= {"timeCreated": now, "updated": now, "size": str(len(content))}
        self.objects[name] = (generation, content, told)
        return told

    def uri(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return f"gs://anonymous@{self.bucket}/{prefix}?endpoint_override=127.0.0.1:{self.server_port}&scheme=http"


@contextlib.contextmanager
def gcs_server(bucket: str = "experiments") -> Iterator[GcsServer]:
    """A running server that is gone in the end."""
    server = GcsServer(bucket)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: GcsServer

    def do_GET(self) -> None:
        """Metadata of an object, its content or a range of that, or a list of objects."""
        name, query = self._asked()
        if not name and urllib.parse.urlsplit(self.path).path.endswith("/o"):
            with self.server.lock:
                every = [told for _, _, told in self.server.objects.values()]
            listed = [told for told in every if told["name"].startswith(query.get("prefix", ""))]
            self._answer(200, json.dumps({"kind": "storage#objects", "items": listed}).encode())
            return
        with self.server.lock:
            found = self._matching(name, query)
        if found and query.get("alt") == "media":
            first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
            content = found[1]
            part = content[int(first) : int(last) + 1 if last else None] if first else content[-int(last) :]
            self._answer(
                206 if "Range" in self.headers else 200, part, found[0], len(content), int(first or 0)
            )
        elif found:
            self._answer(200, json.dumps(found[2]).encode())

    def do_POST(self) -> None:
        """A multipart upload: metadata in JSON, then the content."""
        body = self.rfile.read(int(self.headers["Content-Length"]))
        _, query = self._asked()
        head = f"Content-Type: {self.headers['Content-Type']}\r\n\r\n".encode()
        metadata, content = (
            part.get_payload(decode=True) for part in email.message_from_bytes(head + body).get_payload()
        )
        name = json.loads(metadata)["name"]
        with self.server.lock:
            if "ifGenerationMatch" in query and not self._matching(name, query):
                return
            told = self.server.put(name, content)
        self._answer(200, json.dumps(told).encode())

    def do_DELETE(self) -> None:
        """Removal of an object."""
        name, query = self._asked()
        with self.server.lock:
            if self._matching(name, query):
                del self.server.objects[name]
                self._answer(204, b"")

    def _asked(self) -> tuple[str, dict[str, str]]:
        parts = urllib.parse.urlsplit(self.path)
        return urllib.parse.unquote(parts.path.partition("/o/")[2]), dict(urllib.parse.parse_qsl(parts.query))

    def _matching(self, name: str, query: dict[str, str]) -> Any:
        """The object as the preconditions want it: True for its absence, None where that was answered already."""
        found = self.server.objects.get(name)
        wanted = query.get("ifGenerationMatch")
        if f"/b/{self.server.bucket}/" not in self.path:
            self._refuse(404, "The specified bucket does not exist.")
        elif wanted is not None and wanted != str(found[0] if found else 0):
            self._refuse(412, "At least one of the pre-conditions you specified did not hold.")
        elif found is None and wanted != "0":
            self._refuse(404, f"No such object: {self.server.bucket}/{name}")
        else:
            return found or True
        return None

    def _refuse(self, code: int, message: str) -> None:
        self._answer(code, json.dumps({"error": {"code": code, "message": message}}).encode())

    def _answer(self, code: int, content: bytes, generation: int = 0, size: int = 0, first: int = 0) -> None:
        self.send_response(code)
        if generation:
            self.send_header("x-goog-generation", str(generation))
            self.send_header("x-goog-stored-content-length", str(size))
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


@contextlib.contextmanager
def served_folder(folder: Path, prefix: str) -> Iterator[str]:
    """The address of a prefix that holds a folder's files, served by a process of its own.

    What reads a file by pyarrow holds up all threads of its process meanwhile, a server's too.
    """
    words = [sys.executable, __file__, str(folder), prefix]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdin is not None and server.stdout is not None
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(20)
        server.stdout.close()


if __name__ == "__main__":
    with gcs_server() as serving:
        for path in Path(sys.argv[1]).iterdir():
            serving.put(f"{sys.argv[2]}/{path.name}", path.read_bytes())
        print(serving.uri(sys.argv[2]), flush=True)
        sys.stdin.read()

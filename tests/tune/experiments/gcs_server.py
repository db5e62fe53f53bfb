"""A server that speaks as much of Google Cloud Storage's JSON API as a lease needs, with its preconditions.

One bucket, objects in memory: metadata, download, multipart upload, deletion, each with `ifGenerationMatch`.
"""

from __future__ import annotations

import contextlib
import datetime
import email
import itertools
import json
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
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
        """Metadata of an object, or its content."""
        name, query = self._asked()
        with self.server.lock:
            found = self._matching(name, query)
        if found and query.get("alt") == "media":
            self._answer(200, found[1])
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
            generation = next(self.server.generations)
            now = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            told = {"name": name, "bucket": self.server.bucket, "generation": str(generation)}
            told |= {"timeCreated": now, "updated": now, "size": str(len(content))}
            self.server.objects[name] = (generation, content, told)
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

    def _answer(self, code: int, content: bytes) -> None:
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""

"""A server that speaks as much of Google Cloud Storage's JSON API as a stream needs: one bucket that is only read.

`python gcs_server.py FOLDER PREFIX` serves a folder's files until its standard input ends.
"""

import contextlib
import json
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET, WRITTEN = "experiments", "2026-01-01T12:00:00.000Z"
OBJECTS: dict[str, bytes] = {}


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        """Metadata of an object, its content or a range of that, or a list of objects."""
        parts = urllib.parse.urlsplit(self.path)
        name, query = urllib.parse.unquote(parts.path.partition("/o/")[2]), urllib.parse.parse_qs(parts.query)
        if not name and parts.path.endswith("/o"):
            prefix = query.get("prefix", [""])[0]
            items = [_metadata(each) for each in OBJECTS if each.startswith(prefix)]
            self._answer(200, json.dumps({"kind": "storage#objects", "items": items}).encode())
        elif name not in OBJECTS or f"/b/{BUCKET}/" not in parts.path:
            error = {"code": 404, "message": f"No such object: {BUCKET}/{name}"}
            self._answer(404, json.dumps({"error": error}).encode())
        elif query.get("alt") == ["media"]:
            first, _, last = (self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")
            content = OBJECTS[name]
            part = content[int(first) : int(last) + 1 if last else None] if first else content[-int(last) :]
            code = 206 if "Range" in self.headers else 200
            self._answer(code, part, size=len(content), first=int(first or 0))
        else:
            self._answer(200, json.dumps(_metadata(name)).encode())

    def _answer(self, code: int, content: bytes, size: int | None = None, first: int = 0) -> None:
        self.send_response(code)
        if size is not None:
            self.send_header("x-goog-generation", "1")
            self.send_header("x-goog-stored-content-length", str(size))
        if code == 206:
            self.send_header("Content-Range", f"bytes {first}-{first + len(content) - 1}/{size}")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        """Nothing on the screen."""


def _metadata(name: str) -> dict[str, str]:
    told = {"name": name, "bucket": BUCKET, "generation": "1", "size": str(len(OBJECTS[name]))}
    return told | {"timeCreated": WRITTEN, "updated": WRITTEN}


@contextlib.contextmanager
def served_folder(folder: Path, prefix: str) -> Iterator[str]:
    """The address of a prefix that holds a folder's files, served by a process of its own.

    What reads a file by pyarrow holds up all threads of its process meanwhile, a server's too.
    """
    words = [sys.executable, __file__, str(folder), prefix]
    server = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield server.stdout.readline().strip()
    finally:
        server.stdin.close()
        server.wait(20)
        server.stdout.close()


if __name__ == "__main__":
    OBJECTS.update({f"{sys.argv[2]}/{path.name}": path.read_bytes() for path in Path(sys.argv[1]).iterdir()})
    serving = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    query = f"endpoint_override=127.0.0.1:{serving.server_port}&scheme=http"
    print(f"gs://anonymous@{BUCKET}/{sys.argv[2]}?{query}", flush=True)
    sys.stdin.read()

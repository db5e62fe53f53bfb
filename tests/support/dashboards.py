"""Dashboards of Ray clusters without jobs, behind a proxy that wants a token."""

import contextlib
import http.server
import importlib.metadata
import json
import platform
import ssl
import threading
from collections.abc import Iterator
from typing import Any


@contextlib.contextmanager
def dashboard(token: str, *, ray: str | None = None, tls: ssl.SSLContext | None = None) -> Iterator[int]:
    """The port of one that reports a version of Ray, by default ours."""
    version = {"version": "4", "ray_version": ray or importlib.metadata.version("ray"), "ray_commit": ""}
    answers: dict[str, Any] = {
        "/api/version": version,
        "/api/v0/cluster_metadata": {"pythonVersion": platform.python_version()},
    }

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = self.headers.get("Authorization") == f"Bearer {token}"
            body = json.dumps(answers.get(self.path, [])).encode()
            self.send_response(200 if known else 401)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()

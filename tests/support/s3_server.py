"""A server that speaks S3, in a process of its own, so that it can really be stopped and started again.

`python s3_server.py PORT BUCKET` serves until its standard input ends; what it holds is gone with it.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from processes import free_port

if TYPE_CHECKING:
    import pytest

KEYS = {"AWS_ACCESS_KEY_ID": "planted-access-key", "AWS_SECRET_ACCESS_KEY": "planted-secret-key"}
"""The server takes any; tests look for these in what must not hold them."""


def give_keys(monkeypatch: pytest.MonkeyPatch, cache: Path | None = None) -> None:
    """An environment of nobody's but these keys; `cache` is the user's cache folder."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))


class S3Server:
    """The server with one bucket, started on a free port that it keeps over a restart."""

    bucket = "experiments"

    def __init__(self, *, refuses: bool = False) -> None:
        self._environment = {"INITIAL_NO_AUTH_ACTION_COUNT": "1"} if refuses else {}
        self.port = free_port()

    @property
    def query(self) -> str:
        """What an address needs after `?` to reach it."""
        return f"endpoint_override=127.0.0.1:{self.port}&scheme=http"

    @property
    def endpoint(self) -> str:
        """What `AWS_ENDPOINT_URL` must hold to reach it."""
        return f"http://127.0.0.1:{self.port}"

    def uri(self, prefix: str) -> str:
        """The address of a prefix in the bucket."""
        return f"s3://{self.bucket}/{prefix}?{self.query}"

    def start(self) -> None:
        """Start the process and wait until it answers; the bucket is empty."""
        self._process = subprocess.Popen(
            [sys.executable, __file__, str(self.port), self.bucket],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **self._environment},
            text=True,
        )
        assert self._process.stdout.readline() == "ready\n"

    def stop(self) -> None:
        """Kill the process: connections break off, as when a machine goes away."""
        self._process.kill()
        self._process.communicate()


@contextlib.contextmanager
def s3_server(*, refuses: bool = False) -> Iterator[S3Server]:
    """A running server that is gone in the end; no key is good enough for one that `refuses`."""
    server = S3Server(refuses=refuses)
    server.start()
    try:
        yield server
    finally:
        server.stop()


def _serve(port: int, bucket: str) -> None:
    import boto3
    from moto.server import ThreadedMotoServer

    os.environ.update(KEYS)
    ThreadedMotoServer(ip_address="127.0.0.1", port=port, verbose=False).start()
    client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{port}", region_name="us-east-1")
    client.create_bucket(Bucket=bucket)
    print("ready", flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    _serve(int(sys.argv[1]), sys.argv[2])

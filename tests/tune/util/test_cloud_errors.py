"""What the clients of stores really raise where a store is away or an address is wrong is known for what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tune.util.cloud_errors import cloud_errors

CLOSED = "http://127.0.0.1:9"


def s3_away() -> None:
    boto3 = pytest.importorskip("boto3")
    keys = {"aws_access_key_id": "x", "aws_secret_access_key": "x", "region_name": "us-east-1"}
    boto3.client("s3", endpoint_url=CLOSED, **keys).list_buckets()


def google_away() -> None:
    storage = pytest.importorskip("google.cloud.storage")
    from google.api_core.retry import Retry

    client = storage.Client.create_anonymous_client()
    client._connection.API_BASE_URL = CLOSED
    list(client.list_blobs("bucket", retry=Retry(timeout=0.1)))


def http_away() -> None:
    import requests

    requests.get(CLOSED, timeout=5)


def database_away() -> None:
    import sqlalchemy

    sqlalchemy.create_engine("sqlite:////no/such/folder/x.db").connect()


def bad_address_of_pyarrow() -> None:
    import pyarrow.fs

    pyarrow.fs.FileSystem.from_uri("s3://bucket/x?scheme=nonsense")


@pytest.mark.parametrize(
    "call",
    [
        *(s3_away, google_away, http_away, database_away, bad_address_of_pyarrow),
    ],
    ids=lambda call: call.__name__,
)
def test_what_clients_raise(
    call: Callable[[], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "*")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    try:
        call()
    except cloud_errors():
        return
    pytest.fail("nothing was raised")


def test_a_bug_is_not_among_them() -> None:
    for bug in (KeyError, TypeError, AttributeError, AssertionError, RuntimeError):
        assert not issubclass(bug, cloud_errors())


def test_no_client_is_imported_for_it() -> None:
    code = (
        "import sys; from tune.util.cloud_errors import cloud_errors as f; before = set(sys.modules); f()\n"
    )
    code += "assert set(sys.modules) == before; print([kind.__name__ for kind in f()])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['OSError', 'EOFError']"

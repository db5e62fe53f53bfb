"""A server for all tests of a process, and a way to it that can be cut."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cut_proxy import CutProxy
from mlflow_server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An MLflow server; experiments are called as their tests."""
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def proxy(server: Server) -> Iterator[CutProxy]:
    """Stands between a search and the server."""
    proxy = CutProxy(server.port)
    proxy.start()
    yield proxy
    proxy.passing.set()
    proxy.stop()

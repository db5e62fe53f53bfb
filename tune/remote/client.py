"""Reaching a cluster that takes jobs: its address, its answers in one line, its versions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError
from tune.util.errors import first_line
from tune.util.redact import hide_password

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

ADDRESSES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
"""Variables with the address of a cluster's dashboard, the first that is set."""
_CONNECT_SECONDS, _ANSWER_SECONDS = 5, 10


class JobError(UserError):
    """A cluster's jobs cannot be reached, or there is no such job."""


def cluster_address(given: str | None) -> str:
    """The address to use: `--address`, else `RAY_API_SERVER_ADDRESS`, else `RAY_ADDRESS`.

    Raises:
        JobError: there is none, or it is not one of a cluster's dashboard.
    """
    named = {"--address ": given, **{f"{name}=": os.environ.get(name) for name in ADDRESSES}}
    for source, address in named.items():
        if address:
            scheme, _, rest = address.partition("://")
            if scheme in ("http", "https", "vertex_ray") and rest.strip("/"):
                return address.rstrip("/")
            raise JobError(
                f"{source}{hide_password(address)}: is not the address of a cluster's dashboard; give "
                "http://HEAD:8265 or vertex_ray://NAME"
            )
    raise JobError(
        "--address: missing; give the cluster's dashboard, http://HEAD:8265, or set RAY_API_SERVER_ADDRESS to it"
    )


def connect(address: str) -> JobSubmissionClient:
    """A client for the jobs of a cluster, known to be there and to let us in.

    Ray's token and the headers in `RAY_JOB_HEADERS` go with every request of the client.

    Raises:
        JobError: nobody answers within seconds, it is no Ray, or it does not accept our credentials.
    """
    import requests

    headers = _headers()
    with cluster_errors(address):
        # Ray's client would wait for ever for a machine that takes no connections; this carries no credentials.
        timeout = (_CONNECT_SECONDS, _ANSWER_SECONDS)
        requests.get(f"{address}/api/version", timeout=timeout, allow_redirects=False).close()
        from ray.job_submission import JobSubmissionClient

        # It would print what it packs and uploads; the client's own modules have levels of their own.
        for name in {"ray", *(each.__module__ for each in JobSubmissionClient.mro())}:
            logging.getLogger(name).setLevel(logging.WARNING)
        # It takes `RAY_ADDRESS` before the address that it is given, which we have chosen already.
        kept = {name: os.environ.pop(name) for name in ADDRESSES if name in os.environ}
        try:
            return JobSubmissionClient(address, headers=headers)
        finally:
            os.environ.update(kept)


def _headers() -> dict[str, str] | None:
    """Headers for a proxy in front of the dashboard, in the variable that Ray's own commands read."""
    text = os.environ.get("RAY_JOB_HEADERS")
    if not text:
        return None
    with contextlib.suppress(json.JSONDecodeError):
        headers = json.loads(text)
        if isinstance(headers, dict) and all(isinstance(each, str) for each in headers.values()):
            return headers
    # The text is not shown, nor the parser's error, which would quote it: it holds credentials.
    raise JobError('RAY_JOB_HEADERS: must be a JSON object of texts, as in {"Authorization": "Bearer ..."}')


@contextlib.contextmanager
def cluster_errors(address: str) -> Iterator[None]:
    """One line for what Ray's client raises in the block: its messages hold whole pages and tracebacks."""
    from ray.exceptions import RayError
    from requests import RequestException

    try:
        yield
    except (RequestException, ConnectionError, UnicodeError, RuntimeError, KeyError, RayError) as error:
        raise JobError(f"--address {hide_password(address)}: {_explain(error)}") from error


def _explain(error: Exception) -> str:
    from requests import exceptions

    said = first_line(error)
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        said = f"status code {error.response.status_code}"
    elif isinstance(error, exceptions.Timeout):
        return (
            f"no answer within {_ANSWER_SECONDS} s; is the cluster running, and can this machine reach it "
            "(a port-forward or an SSH tunnel may be needed)?"
        )
    elif isinstance(
        error, (exceptions.ConnectionError, exceptions.InvalidURL, ConnectionError, UnicodeError)
    ):
        return (
            "cannot be reached; is the cluster running with its dashboard (ray start --head --dashboard-host "
            "0.0.0.0), is it this host and port, and http:// or https://?"
        )
    # Newer Rays raise an AuthenticationError of their own.
    if said.startswith("Authentication") or "status code 401" in said or "status code 403" in said:
        return (
            "does not let us in; with Ray's token authentication set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN here, behind a proxy RAY_JOB_HEADERS"
        )
    return f"does not answer as the dashboard of a Ray cluster: {hide_password(said)[:300]}"


def get_json(client: JobSubmissionClient, path: str) -> Any:
    """What the dashboard has under a path; raises `JobError` where it does not answer, or not in JSON."""
    with cluster_errors(client.get_address()):
        # A private part of Ray's client: no public one asks for anything but jobs, and this carries its token,
        # headers and cookies on every version of Ray.
        answer = client._do_request("GET", path, timeout=30)
        answer.raise_for_status()
        return answer.json()


def cluster_versions(client: JobSubmissionClient) -> tuple[str, str]:
    metadata = get_json(client, "/api/v0/cluster_metadata")
    return get_json(client, "/api/version")["ray_version"], metadata.get("data", metadata)["pythonVersion"]


def version_difference(ray_version: str, python_version: str) -> str | None:
    """How a cluster's versions differ from ours, None if they do not: a job needs the same Ray and minor Python."""
    import ray

    here, there = (
        f"Ray {of_ray} and Python {'.'.join(of_python.split('.')[:2])}"
        for of_ray, of_python in (
            (ray.__version__, platform.python_version()),
            (ray_version, python_version),
        )
    )
    return None if here == there else f"the cluster runs {there}, here is {here}"

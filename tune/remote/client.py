"""Reaching a cluster that takes jobs: its address, its answers in one line, its versions."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import platform
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tune.util.errors import UserError, first_line
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
    sources = {"--address ": given, **{f"{name}=": os.environ.get(name) for name in ADDRESSES}}
    source, address = next(((source, text) for source, text in sources.items() if text), ("", ""))
    if not address:
        raise JobError(
            "--address: missing; give the cluster's dashboard, http://HEAD:8265, or set RAY_API_SERVER_ADDRESS to it"
        )
    scheme, found, rest = address.partition("://")
    if found and scheme in ("http", "https", "vertex_ray") and rest.strip("/"):
        return address.rstrip("/")
    host = (rest if found else address).rpartition("@")[2].partition("/")[0]
    host = host.rpartition(":")[0] or host
    kind = "is for Ray's own client" if scheme == "ray" else "is not the address of a cluster's dashboard"
    right = f"http://{'HEAD' if host in ('', 'auto', 'local') else host}:8265"
    raise JobError(f"{source}{hide_password(address)}: {kind}; jobs go to {right} or vertex_ray://NAME")


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

        for name in ("ray.dashboard", "ray._private"):
            logging.getLogger(name).setLevel(logging.WARNING)
        # It takes `RAY_ADDRESS` before the address that it is given, which we have chosen already.
        kept = {name: os.environ.pop(name) for name in ADDRESSES if name in os.environ}
        try:
            return JobSubmissionClient(address, headers=headers)
        finally:
            os.environ.update(kept)


def _headers() -> dict[str, str] | None:
    """Headers for a proxy in front of the dashboard, in the variable that Ray's own commands read."""
    found: Any
    try:
        found = json.loads(os.environ.get("RAY_JOB_HEADERS") or "null")
    except json.JSONDecodeError:
        found = ""
    texts = isinstance(found, dict) and all(isinstance(each, str) for each in found.values())
    if found is not None and not texts:
        # The text is not shown, nor the parser's error, which would quote it: it holds credentials.
        raise JobError(
            'RAY_JOB_HEADERS: must be a JSON object of texts, as in {"Authorization": "Bearer ..."}'
        ) from None
    headers: dict[str, str] | None = found
    return headers


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

    said, unreachable = first_line(error), (exceptions.RequestException, ConnectionError, UnicodeError)
    if isinstance(error, exceptions.SSLError):
        return "TLS failed; is it http:// or https://?"
    if isinstance(error, exceptions.Timeout):
        return (
            f"no answer within {_ANSWER_SECONDS} s; is the cluster running, and can this machine reach it "
            "(a port-forward or an SSH tunnel may be needed)?"
        )
    if isinstance(error, exceptions.HTTPError) and error.response is not None:
        said = f"status code {error.response.status_code}"
    elif isinstance(error, unreachable) and not isinstance(error, exceptions.JSONDecodeError):
        return (
            "cannot be reached; is the cluster running with its dashboard (ray start --head --dashboard-host "
            "0.0.0.0), and is it this host and port?"
        )
    # Newer Rays raise an AuthenticationError of their own.
    if said.startswith("Authentication") or "status code 401" in said or "status code 403" in said:
        return (
            "does not let us in; with Ray's token authentication set RAY_AUTH_MODE=token and "
            "RAY_AUTH_TOKEN_PATH or RAY_AUTH_TOKEN here, behind a proxy RAY_JOB_HEADERS"
        )
    if "status code" in said and "404" not in said:
        return f"the cluster answers with an error: {hide_password(said)[:300]}"
    return f"answers, but not as the dashboard of a Ray cluster does: {hide_password(said)[:200]}"


def cluster_versions(client: JobSubmissionClient) -> tuple[str, str | None]:
    """Versions of Ray and Python on the cluster; Python's is None where the dashboard does not tell it.

    Raises:
        JobError: the cluster does not answer.
    """
    with cluster_errors(client.get_address()):
        # The client's own request: the only way that carries its token and headers on every version of Ray.
        ray_version = client._do_request("GET", "/api/version").json()["ray_version"]
        answer = client._do_request("GET", "/api/v0/cluster_metadata")
    if answer.status_code != 200 or "json" not in answer.headers.get("content-type", ""):
        return str(ray_version), None
    found = answer.json()
    python = (found.get("data") or found).get("pythonVersion")
    return str(ray_version), str(python) if python else None


def minor(version: str) -> str:
    """A version without its patch, as 3.11."""
    return ".".join(version.split(".")[:2])


def version_difference(ray_version: str, python_version: str | None) -> tuple[str, str] | None:
    """What differs, there and here, as `Ray 2.40.0 and Python 3.9`; a job needs the same Ray and minor Python."""
    import ray

    pairs = [("Ray", ray_version, ray.__version__)]
    if python_version:
        pairs.append(("Python", minor(python_version), minor(platform.python_version())))
    wrong = [pair for pair in pairs if pair[1] != pair[2]]
    if not wrong:
        return None
    there, here = (" and ".join(f"{pair[0]} {pair[side]}" for pair in wrong) for side in (1, 2))
    return there, here


def check_versions(client: JobSubmissionClient) -> None:
    """Refuse a cluster that runs other versions: what is pinned here would not fit or not behave the same there.

    Raises:
        JobError: another Ray, or another minor version of Python.
    """
    if difference := version_difference(*cluster_versions(client)):
        there, here = difference
        raise JobError(
            f"--address {hide_password(client.get_address())}: the cluster runs {there}, here is {here}; submit from "
            "an environment with the cluster's versions, or send it anyway with --allow-version-mismatch"
        )

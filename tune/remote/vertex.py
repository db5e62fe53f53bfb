"""Ray on Vertex AI by Google's own SDK, `google.cloud.aiplatform.vertex_ray`: its errors in one line, nothing else.

Credentials are those that Google's libraries find (application default credentials). docs/clusters.md says what the
tests exercise of this and what they cannot.
"""

from __future__ import annotations

import contextlib
import io
import logging
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from trainer.errors import UserError
from tune.remote.client import cluster_errors

if TYPE_CHECKING:
    from ray.job_submission import JobSubmissionClient

SCHEME = "vertex_ray://"
_LOGIN = "run gcloud auth application-default login, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"


class VertexError(UserError):
    """Vertex AI cannot be used as asked; says what to do."""


@contextlib.contextmanager
def vertex_sdk(address: str, project: str | None, location: str | None) -> Iterator[tuple[Any, str]]:
    """Google's `vertex_ray` module, set to a project and a location, and the full name of a cluster.

    The address is `NAME` or `projects/PROJECT/locations/LOCATION/persistentResources/NAME`, with or without
    `vertex_ray://`. Project and location are by default those of the environment or of the credentials.

    Raises:
        VertexError: the SDK is not installed; also, in one line, instead of what it raises in the block.
    """
    logging.getLogger("google").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from google.api_core.exceptions import GoogleAPIError
            from google.auth.exceptions import GoogleAuthError
            from google.cloud import aiplatform
            from google.cloud.aiplatform import initializer, vertex_ray
    except ImportError as error:
        raise VertexError(
            f"{SCHEME}: needs Google's SDK; pip install 'tune-whisper[vertex]' ({_one_line(error)})"
        ) from error
    name = address.removeprefix(SCHEME)
    if full := re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/persistentResources/[^/]+", name):
        project, location = full.groups()
    try:
        config = initializer.global_config
        aiplatform.init(project=project or config.project, location=location)
        if not full:
            name = f"projects/{config.project}/locations/{config.location}/persistentResources/{name}"
        yield vertex_ray, name
    except UserError:
        raise
    except (GoogleAPIError, GoogleAuthError, ValueError, TypeError, KeyError, RuntimeError) as error:
        wrapped = isinstance(error, (ValueError, RuntimeError)) and error.__cause__
        raise VertexError(f"{SCHEME}{name}: {_explain(wrapped or error)}") from error


def _explain(error: BaseException) -> str:
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    text = _one_line(error)
    # Over gRPC a token that cannot be got comes as "unavailable". The text is not shown: it may quote the key's file.
    if isinstance(error, GoogleAuthError) or "metadata from plugin failed" in text:
        return f"no credentials that can be used; {_LOGIN}"
    if isinstance(error, KeyError):
        return f"{text}: the SDK knows no such name"
    if isinstance(error, exceptions.Unauthorized):
        return f"credentials were not accepted; {_LOGIN}"
    if isinstance(error, exceptions.Forbidden):
        return f"permission denied; the account needs the role roles/aiplatform.user or more ({text})"
    if isinstance(error, exceptions.NotFound):
        return f"no such cluster; check the name, --project and --location ({text})"
    return text


def _one_line(error: BaseException) -> str:
    """What the SDK says on one line, without its own mark and cut to a readable length."""
    text = str(getattr(error, "message", "") or error)
    return " ".join(text.replace("[Ray on Vertex AI]: ", "").split())[:300]


def job_client(address: str, project: str | None, location: str | None) -> JobSubmissionClient:
    """A client for the jobs of a running cluster; its requests carry Google's token, valid for an hour."""
    from ray.job_submission import JobSubmissionClient

    with (
        vertex_sdk(address, project, location) as (vertex_ray, name),
        contextlib.redirect_stdout(io.StringIO()),
    ):
        state = vertex_ray.get_ray_cluster(name).state
        if state != "RUNNING":  # the SDK would wait for one that is being created, for ever
            raise VertexError(f"{SCHEME}{name}: the cluster is {state}, not RUNNING")
        with cluster_errors(address):
            return JobSubmissionClient(SCHEME + name)

"""Mistakes with Vertex AI: one line for what Google's SDK raises, and its own prints kept out of ours."""

from __future__ import annotations

import contextlib
import io
import logging
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from tune.errors import UserError

if TYPE_CHECKING:
    from tune.vertex import ClusterName


class VertexError(UserError):
    """Vertex AI cannot be used as asked; says what to do."""


@contextlib.contextmanager
def quiet_sdk(*, progress: bool = False) -> Iterator[None]:
    """Keep what the SDK prints out of our output; with `progress` it goes to stderr."""
    logging.getLogger("google").setLevel(logging.ERROR)
    with contextlib.redirect_stdout(sys.stderr if progress else io.StringIO()):
        yield


@contextlib.contextmanager
def sdk_errors(name: ClusterName) -> Iterator[None]:
    """Tell what the SDK raises inside in one line.

    Raises:
        VertexError: instead of the errors of Google's libraries, and the plain ones that the SDK wraps them in.
    """
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError

    try:
        yield
    except (GoogleAPIError, GoogleAuthError, ValueError, RuntimeError) as error:
        wrapped = isinstance(error, (ValueError, RuntimeError)) and error.__cause__
        where = f"vertex_ray://{name.name} in {name.project}, {name.location}"
        raise VertexError(f"{where}: {_explain(wrapped or error, name.project)}") from error


def _explain(error: BaseException, project: str) -> str:
    """What an error of Google's libraries means, and what to do."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    text = one_line(str(getattr(error, "message", "") or error))
    # Over gRPC a token that cannot be got comes as "unavailable". The text is not shown: it may quote the answer.
    if isinstance(error, GoogleAuthError) or "metadata from plugin failed" in text:
        return "credentials cannot be used for a token; run gcloud auth application-default login"
    if isinstance(error, exceptions.Forbidden):
        return _explain_forbidden(text, project)
    known = {
        exceptions.NotFound: f"no such cluster; check the name, --project and --location ({text})",
        exceptions.Unauthenticated: "credentials were not accepted; run gcloud auth application-default login",
        exceptions.AlreadyExists: "there is a cluster of this name already; choose another name",
        exceptions.ResourceExhausted: f"the project's quota does not allow it; ask for more ({text})",
        exceptions.ServiceUnavailable: f"Vertex AI cannot be reached: {text}",
        exceptions.DeadlineExceeded: "Vertex AI does not answer; try again",
    }
    return next((meaning for kind, meaning in known.items() if isinstance(error, kind)), text)


def _explain_forbidden(text: str, project: str) -> str:
    if "SERVICE_DISABLED" in text or "has not been used in project" in text:
        service = re.search(r"([a-z]+\.googleapis\.com)", text)
        api = service.group(1) if service else "aiplatform.googleapis.com"
        return f"an API is not enabled; run gcloud services enable {api} --project {project}"
    return f"permission denied; the account needs the role roles/aiplatform.user or more ({text})"


def one_line(text: str) -> str:
    """A text of the SDK on one line, without its own mark and cut to a readable length."""
    flat = " ".join(text.replace("[Ray on Vertex AI]: ", "").split())
    return flat if len(flat) <= 300 else flat[:297] + "..."

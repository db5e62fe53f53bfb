"""Ray on Vertex AI: reaching a cluster by its name through Google's own SDK.

Everything goes through `google.cloud.aiplatform.vertex_ray`. Here are only the checks before it and one line for
each mistake after it; credentials are those that Google's libraries find (application default credentials).
docs/clusters.md says what the tests exercise of this and what they cannot.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import os
import platform
import re
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from tune.remote.client import cluster_errors
from tune.util.errors import UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster
    from ray.job_submission import JobSubmissionClient

SCHEME = "vertex_ray://"
ENDPOINT = "TUNE_WHISPER_VERTEX_ENDPOINT"
"""Variable with another API endpoint, as `HOST[:PORT]` (gRPC) or `https://HOST` (REST): Private Service Connect."""
_LOCATION = ("GOOGLE_CLOUD_REGION", "GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION", "CLOUDSDK_COMPUTE_REGION")
_NOT_INSTALLED = "--address vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
_LOGIN = "run gcloud auth application-default login"


class VertexError(UserError):
    """Vertex AI cannot be used as asked; says what to do."""


@dataclasses.dataclass(frozen=True)
class ClusterName:
    """A cluster on Vertex AI by project, location and name."""

    project: str
    location: str
    name: str

    @property
    def resource(self) -> str:
        """The name as the API takes it."""
        return f"projects/{self.project}/locations/{self.location}/persistentResources/{self.name}"

    @property
    def address(self) -> str:
        """The address as `--address` and Ray's job client take it."""
        return SCHEME + self.resource


def cluster_name(address: str, project: str | None = None, location: str | None = None) -> ClusterName:
    """Read an address; project and location come from it, else the arguments, else the environment.

    Args:
        address: `vertex_ray://NAME`, `vertex_ray://projects/P/locations/L/persistentResources/NAME`, or the same
            without the scheme.
        project: project id, as `--project` gives it.
        location: region, as `--location` gives it.

    Raises:
        VertexError: the address has another form, or no project is known.
    """
    rest = address.removeprefix(SCHEME).strip("/")
    full = re.fullmatch(r"projects/([^/]+)/locations/([^/]+)/persistentResources/([^/]+)", rest)
    if full:
        return ClusterName(*full.groups())
    if not re.fullmatch(r"[a-z][a-z0-9_-]{0,62}", rest):
        raise VertexError(
            f"--address {address}: must be {SCHEME}NAME (lower-case letters, digits, - and _) or "
            f"{SCHEME}projects/PROJECT/locations/LOCATION/persistentResources/NAME"
        )
    return ClusterName(find_project(project), find_location(location), rest)


def find_project(given: str | None = None) -> str:
    """The project: as given, else from the environment or that of the credentials; `VertexError` without any."""
    project = given or os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("CLOUDSDK_CORE_PROJECT")
    project = project or _credentials_project()
    if not project:
        raise VertexError("--project: missing; give the Google Cloud project, or set GOOGLE_CLOUD_PROJECT")
    return project


def find_location(given: str | None = None) -> str:
    """The region: as given, else from the environment, else us-central1, as in Google's SDK."""
    return given or next((os.environ[name] for name in _LOCATION if os.environ.get(name)), "us-central1")


def job_client(address: str, project: str | None = None, location: str | None = None) -> JobSubmissionClient:
    """A job client for a running cluster with our versions; its requests carry Google's token, valid for an hour.

    Raises:
        VertexError: as `prepare_address`, or the cluster's dashboard cannot be reached.
        JobError: the dashboard does not let us in, or is no Ray.
    """
    return dashboard_client(cluster_name(prepare_address(address, project, location)))


def prepare_address(address: str, project: str | None = None, location: str | None = None) -> str:
    """The full address for `ray.job_submission.JobSubmissionClient`, and Google's SDK set to its project.

    Raises:
        VertexError: in one line: the extra is not installed, no credentials or project, no such cluster, no
            permission, not running, or other versions there.
    """
    name = cluster_name(address, project, location)
    shown = SCHEME + name.name
    open_sdk(name.project, name.location)
    check_our_versions()
    cluster = get_cluster(name)
    if cluster.state != "RUNNING":
        raise VertexError(
            f"--address {shown}: the cluster is {cluster.state}, not RUNNING; "
            f"see tune-whisper cluster --address {shown}"
        )
    difference = version_difference(cluster)
    if difference:
        raise VertexError(f"--address {shown}: {difference}")
    return name.address


def dashboard_client(name: ClusterName) -> JobSubmissionClient:
    """A job client without the checks, to look at a cluster; the SDK must be open."""
    from ray.job_submission import JobSubmissionClient

    with sdk_errors(name), cluster_errors(SCHEME + name.name), quiet_sdk():
        return JobSubmissionClient(name.address)


def get_cluster(name: ClusterName) -> Cluster:
    """Look a cluster up; raises `VertexError` where it cannot be found or read."""
    vertex_ray = open_sdk(name.project, name.location)
    with sdk_errors(name), quiet_sdk():
        return vertex_ray.get_ray_cluster(name.resource)


def import_sdk() -> Any:
    """Google's `vertex_ray` module.

    Raises:
        VertexError: the extra is not installed, or does not work with our Ray.
    """
    try:
        with quiet_sdk():
            from google.cloud.aiplatform import vertex_ray
    except ImportError as error:
        import ray

        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("ray"):
            raise VertexError(_NOT_INSTALLED) from error
        raise VertexError(
            f"--address vertex_ray://: Google's SDK does not work with Ray {ray.__version__}: {_one_line(error)}"
        ) from error
    return vertex_ray


def open_sdk(project: str, location: str) -> Any:
    """Google's `vertex_ray` module, set to a project and location.

    Raises:
        VertexError: the extra is not installed, there are no credentials, or there is no such location.
    """
    vertex_ray = import_sdk()
    from google.cloud import aiplatform

    _credentials_project()
    endpoint = os.environ.get(ENDPOINT) or None
    transport = "rest" if endpoint is not None and "://" in endpoint else "grpc"
    try:
        aiplatform.init(project=project, location=location, api_endpoint=endpoint, api_transport=transport)
    except ValueError as error:
        raise VertexError(f"--location {location}: {_one_line(error)}") from error
    return vertex_ray


def _credentials_project() -> str | None:
    """The project of the credentials, if they name one; raises `VertexError` where there are none."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
    except ImportError as error:
        raise VertexError(_NOT_INSTALLED) from error
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    try:
        project: str | None = google.auth.default(scopes=["https://www.googleapis.com/auth/cloud-platform"])[
            1
        ]
    except (GoogleAuthError, ValueError, OSError) as error:
        # The library's text is not shown: it may quote the file with the key.
        where = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        found = f"GOOGLE_APPLICATION_CREDENTIALS={where} cannot be used" if where else "none were found"
        raise VertexError(
            f"Google credentials: {found}; {_LOGIN}, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
        ) from error
    return project


def our_versions() -> tuple[str, str]:
    """Our Ray and Python with major and minor number, as Vertex AI names them."""
    import ray

    return ".".join(ray.__version__.split(".")[:2]), ".".join(platform.python_version_tuple()[:2])


def supported_versions() -> dict[tuple[str, str], str]:
    """Ray's exact version by the pairs of Ray (2.47) and Python (3.11) that the SDK knows to run on Vertex AI."""
    from google.cloud.aiplatform.vertex_ray.util import _validation_utils as sdk

    table = sdk.SUPPORTED_RAY_VERSIONS_FROM_PYTHON_VERSIONS
    return {
        (each, python): sdk.SUPPORTED_RAY_VERSIONS[each] for python, rays in table.items() for each in rays
    }


def check_our_versions() -> None:
    """Refuse our Ray and Python with a `VertexError` where Vertex AI does not run them."""
    import ray

    supported, ours = supported_versions(), our_versions()
    if supported.get(ours) != ray.__version__:
        pairs = ", ".join(f"Ray {exact} with Python {python}" for (_, python), exact in supported.items())
        raise VertexError(
            f"Ray {ray.__version__} and Python {ours[1]} here: Vertex AI does not run them; it runs {pairs}"
        )


def version_difference(cluster: Cluster) -> str | None:
    """How a cluster's versions differ from ours; None where they are the same or a custom image hides them."""
    ours = our_versions()
    theirs = (cluster.ray_version, cluster.python_version)
    if None in theirs or theirs == ours:
        return None
    return (
        f"the cluster runs Ray {theirs[0]} and Python {theirs[1]}, here are Ray {ours[0]} and Python {ours[1]}; "
        "create a cluster with these, or use an environment with the cluster's"
    )


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

    text = _one_line(error)
    # Over gRPC a token that cannot be got comes as "unavailable". The text is not shown: it may quote the answer.
    if isinstance(error, GoogleAuthError) or "metadata from plugin failed" in text:
        return f"credentials cannot be used for a token; {_LOGIN}"
    if "SERVICE_DISABLED" in text or "has not been used in project" in text:
        service = re.search(r"([a-z]+\.googleapis\.com)", text)
        api = service.group(1) if service else "aiplatform.googleapis.com"
        return f"an API is not enabled; run gcloud services enable {api} --project {project}"
    known = {
        exceptions.Forbidden: f"permission denied; the account needs the role roles/aiplatform.user or more ({text})",
        exceptions.NotFound: f"no such cluster; check the name, --project and --location ({text})",
        exceptions.Unauthenticated: f"credentials were not accepted; {_LOGIN}",
        exceptions.AlreadyExists: "there is a cluster of this name already; choose another name",
        exceptions.ResourceExhausted: f"the project's quota does not allow it; ask for more ({text})",
        exceptions.ServiceUnavailable: f"Vertex AI cannot be reached: {text}",
        exceptions.DeadlineExceeded: "Vertex AI does not answer; try again",
    }
    return next((meaning for kind, meaning in known.items() if isinstance(error, kind)), text)


def _one_line(error: BaseException) -> str:
    """What the SDK says on one line, without its own mark and cut to a readable length."""
    text = str(getattr(error, "message", "") or error)
    flat = " ".join(text.replace("[Ray on Vertex AI]: ", "").split())
    return flat if len(flat) <= 300 else flat[:297] + "..."

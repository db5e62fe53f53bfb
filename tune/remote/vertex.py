"""Ray on Vertex AI through Google's own SDK, `google.cloud.aiplatform.vertex_ray`.

Here are only the checks before its calls, one line for each mistake after them, and the reading of a cluster's file,
whose pools are the SDK's `Resources`. Credentials are those that Google's libraries find (application default
credentials). docs/clusters.md says what the tests exercise of this and what they cannot.
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
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from trainer.yaml_nodes import nearest
from tune.remote.client import cluster_errors, minor
from tune.util.errors import UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources
    from ray.job_submission import JobSubmissionClient

SCHEME = "vertex_ray://"
_LOCATION = ("GOOGLE_CLOUD_REGION", "GOOGLE_CLOUD_LOCATION", "CLOUD_ML_REGION", "CLOUDSDK_COMPUTE_REGION")
_NOT_INSTALLED = "--address vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
_LOGIN = "run gcloud auth application-default login"
_MEANINGS = {
    "Forbidden": "permission denied; the account needs the role roles/aiplatform.user or more ({text})",
    "NotFound": "no such cluster; check the name, --project and --location ({text})",
    "Unauthenticated": f"credentials were not accepted; {_LOGIN}",
    "AlreadyExists": "there is a cluster of this name already; choose another name",
    "ResourceExhausted": "the project's quota does not allow it; ask for more ({text})",
    "ServiceUnavailable": "Vertex AI cannot be reached: {text}",
    "DeadlineExceeded": "Vertex AI does not answer; try again",
}
"""What classes of Google's errors mean here."""


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

    def __str__(self) -> str:
        return f"{self.name} in {self.project}, {self.location}"


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
    project = project or os.environ.get("GOOGLE_CLOUD_PROJECT") or os.environ.get("CLOUDSDK_CORE_PROJECT")
    project = project or _credentials_project()
    if not project:
        raise VertexError("--project: missing; give the Google Cloud project, or set GOOGLE_CLOUD_PROJECT")
    places = (os.environ[name] for name in _LOCATION if os.environ.get(name))
    return ClusterName(project, location or next(places, "us-central1"), rest)


def _credentials_project() -> str | None:
    """The project of the credentials, if they name one; raises `VertexError` where there are none."""
    try:
        import google.auth
        from google.auth.exceptions import GoogleAuthError
    except ImportError as error:
        raise VertexError(_NOT_INSTALLED) from error
    logging.getLogger("google.auth").setLevel(logging.ERROR)
    try:
        scope = "https://www.googleapis.com/auth/cloud-platform"
        project: str | None = google.auth.default(scopes=[scope])[1]
    except (GoogleAuthError, ValueError, OSError) as error:
        # The library's text is not shown: it may quote the file with the key.
        where = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
        found = f"GOOGLE_APPLICATION_CREDENTIALS={where} cannot be used" if where else "none were found"
        raise VertexError(
            f"Google credentials: {found}; {_LOGIN}, or set GOOGLE_APPLICATION_CREDENTIALS to a key file"
        ) from error
    return project


def _import_sdk() -> Any:
    """Google's `vertex_ray` module; raises `VertexError` where the extra is missing or does not work with our Ray."""
    logging.getLogger("google").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from google.cloud.aiplatform import vertex_ray
    except ImportError as error:
        import ray

        if isinstance(error, ModuleNotFoundError) and not (error.name or "").startswith("ray"):
            raise VertexError(_NOT_INSTALLED) from error
        raise VertexError(
            f"--address vertex_ray://: Google's SDK does not work with Ray {ray.__version__}: {_one_line(error)}"
        ) from error
    return vertex_ray


@contextlib.contextmanager
def vertex_sdk(name: ClusterName, *, progress: bool = False) -> Iterator[Any]:
    """Google's `vertex_ray` module, set to the project and location of a cluster.

    Args:
        name: the cluster.
        progress: let what the SDK prints go to stderr, else nowhere.

    Raises:
        VertexError: the extra is not installed, there are no credentials or no such location; also, in one line,
            instead of what the SDK raises in the block: errors of Google's libraries, bare or in plain ones.
    """
    vertex_ray = _import_sdk()
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import aiplatform

    _credentials_project()
    try:
        aiplatform.init(project=name.project, location=name.location)
    except ValueError as error:
        raise VertexError(f"--location {name.location}: {_one_line(error)}") from error
    try:
        with contextlib.redirect_stdout(sys.stderr if progress else io.StringIO()):
            yield vertex_ray
    except (GoogleAPIError, GoogleAuthError, ValueError, RuntimeError) as error:
        wrapped = isinstance(error, (ValueError, RuntimeError)) and error.__cause__
        raise VertexError(f"{SCHEME}{name}: {_explain(wrapped or error, name.project)}") from error


def _explain(error: BaseException, project: str) -> str:
    """What an error of Google's libraries means, and what to do."""
    from google.auth.exceptions import GoogleAuthError

    text = _one_line(error)
    # Over gRPC a token that cannot be got comes as "unavailable". The text is not shown: it may quote the answer.
    if isinstance(error, GoogleAuthError) or "metadata from plugin failed" in text:
        return f"credentials cannot be used for a token; {_LOGIN}"
    if "SERVICE_DISABLED" in text or "has not been used in project" in text:
        service = re.search(r"([a-z]+\.googleapis\.com)", text)
        api = service.group(1) if service else "aiplatform.googleapis.com"
        return f"an API is not enabled; run gcloud services enable {api} --project {project}"
    classes = (each.__name__ for each in type(error).__mro__)
    return next((_MEANINGS[each].format(text=text) for each in classes if each in _MEANINGS), text)


def _one_line(error: BaseException) -> str:
    """What the SDK says on one line, without its own mark and cut to a readable length."""
    text = str(getattr(error, "message", "") or error)
    flat = " ".join(text.replace("[Ray on Vertex AI]: ", "").split())
    return flat if len(flat) <= 300 else flat[:297] + "..."


def job_client(address: str, project: str | None = None, location: str | None = None) -> JobSubmissionClient:
    """A job client for a running cluster with our versions; its requests carry Google's token, valid for an hour.

    Raises:
        VertexError: no such cluster, not running, other versions there, or its dashboard cannot be reached.
        JobError: the dashboard does not let us in, or is no Ray.
    """
    name = cluster_name(address, project, location)
    cluster = get_cluster(name)
    problem = version_difference(cluster)
    if cluster.state != "RUNNING":
        problem = f"the cluster is {cluster.state}, not RUNNING; see tune-whisper cluster --address {SCHEME}{name.name}"
    if problem:
        raise VertexError(f"--address {SCHEME}{name.name}: {problem}")
    return dashboard_client(name)


def dashboard_client(name: ClusterName) -> JobSubmissionClient:
    """A job client without the checks, to look at a cluster."""
    from ray.job_submission import JobSubmissionClient

    with vertex_sdk(name), cluster_errors(SCHEME + name.name):
        return JobSubmissionClient(name.address)


def get_cluster(name: ClusterName) -> Cluster:
    """Look a cluster up; raises `VertexError` where it cannot be found or read."""
    with vertex_sdk(name) as vertex_ray:
        return vertex_ray.get_ray_cluster(name.resource)


def version_difference(cluster: Cluster) -> str | None:
    """How a cluster's versions differ from ours; None where they are the same or a custom image hides them."""
    import ray

    ours = minor(ray.__version__), minor(platform.python_version())
    theirs = (cluster.ray_version, cluster.python_version)
    if None in theirs or theirs == ours:
        return None
    return (
        f"the cluster runs Ray {theirs[0]} and Python {theirs[1]}, here are Ray {ours[0]} and Python {ours[1]}; "
        "create a cluster with these, or use an environment with the cluster's"
    )


@dataclasses.dataclass(frozen=True)
class ClusterFile:
    """A cluster to create."""

    name: str
    head: Resources
    workers: list[Resources]
    project: str | None = None
    location: str | None = None
    ray_version: str | None = None
    python_version: str | None = None
    network: str | None = None
    service_account: str | None = None
    labels: dict[str, str] | None = None


def read_cluster_file(path: Path) -> ClusterFile:
    """Read a cluster's YAML file. Names and types are checked; what machines there are Vertex AI itself knows.

    Raises:
        VertexError: it cannot be read, or has a mistake.
    """
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else _one_line(error)
        raise VertexError(
            f"{path}: cannot be read ({reason}); give a YAML file as docs/vertex_cluster.yaml"
        ) from error
    pool = _import_sdk().Resources
    types = {field.name: str for field in dataclasses.fields(ClusterFile)}
    try:
        values = _fields({**types, "head": pool, "workers": [pool], "labels": dict}, "", content)
        for key in ("name", "head", "workers"):
            if not values.get(key):
                raise VertexError(f"{key}: is missing; docs/vertex_cluster.yaml is a whole file")
        for each in (values["head"], *values["workers"]):
            each.accelerator_count = each.accelerator_count or (1 if each.accelerator_type else 0)
        _check_pools(values["head"], values["workers"])
    except VertexError as error:
        raise VertexError(f"{path}: {error}") from None
    return ClusterFile(**values)


def _fields(types: Mapping[str, Any], where: str, content: Any) -> dict[str, Any]:
    """The values of a mapping, each of the type that its key has."""
    if not isinstance(content, dict):
        raise VertexError(f"{where}must be a mapping with some of {', '.join(types)}")
    for key in content:
        if key not in types:
            near = nearest(str(key), types)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(types)}"
            raise VertexError(f"{where}{key}: unknown setting; {hint}")
    return {key: _value(types[key], f"{where}{key}", value) for key, value in content.items()}


def _value(kind: Any, where: str, value: Any) -> Any:
    """One value: a text, a number, a mapping of texts, or one of the SDK's dataclasses; of the last also several."""
    if isinstance(kind, list):
        return [_value(kind[0], where, each) for each in (value if isinstance(value, list) else [value])]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        types = {name: (*typing.get_args(hint), hint)[0] for name, hint in hints.items()}
        return kind(**_fields(types, f"{where}: ", value))  # type: ignore[operator]
    if type(value) is not kind:
        meaning = {str: "a text in quotes", int: "a whole number", dict: "a mapping, as {team: speech}"}[kind]
        raise VertexError(f"{where}={value}: must be {meaning}")
    if where.endswith("accelerator_type"):
        from google.cloud.aiplatform_v1beta1.types import AcceleratorType

        names = [each.name for each in AcceleratorType if each.value]
        if value not in names:
            near = nearest(value.upper().replace("-", "_"), names)
            raise VertexError(
                f"{where}={value}: {f'did you mean {near}?' if near else f'must be one of {names}'}"
            )
    return {name: str(each) for name, each in value.items()} if kind is dict else value


def _check_pools(head: Resources, workers: list[Resources]) -> None:
    """What Google's SDK would create in another way than the file says, or could not scale afterwards."""

    def machine(pool: Resources) -> tuple[str | None, str | None, int | None]:
        return pool.machine_type, pool.accelerator_type, pool.accelerator_count

    def disk(pool: Resources) -> tuple[str | None, int | None, str | None]:
        return pool.boot_disk_type, pool.boot_disk_size_gb, pool.custom_image

    for place, pool in enumerate(workers):
        where = f"workers: {pool.machine_type}"
        if machine(pool) in map(machine, workers[:place]):
            raise VertexError(f"{where}: two pools of the same machines; make them one")
        if machine(pool) == machine(head) and disk(pool) != disk(head):
            raise VertexError(
                f"{where}: the head's machine, so boot disk and custom_image must be the head's"
            )


def most_nodes(pool: Resources) -> int | None:
    """The most machines of a pool that scales itself; None of any other."""
    return (pool.autoscaling_spec and pool.autoscaling_spec.max_replica_count) or None


def fewest_nodes(pool: Resources) -> int:
    """The machines of a pool, the fewest where it scales itself."""
    scaling = pool.autoscaling_spec
    return int(scaling.min_replica_count if scaling and most_nodes(pool) else pool.node_count)


def describe_pool(pool: Resources) -> str:
    """As `4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each`."""
    most = most_nodes(pool)
    count = f"{fewest_nodes(pool)} to {most}" if most else str(fewest_nodes(pool))
    gpus = f" with {pool.accelerator_count} {pool.accelerator_type} each" if pool.accelerator_type else ""
    return f"{count} {pool.machine_type}{gpus}"

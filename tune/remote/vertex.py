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

from trainer.yaml_nodes import Problems, compose, items, nearest, scalar
from tune.remote.client import cluster_errors, minor
from tune.util.errors import UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources
    from ray.job_submission import JobSubmissionClient

SCHEME = "vertex_ray://"
ENDPOINT = "TUNE_WHISPER_VERTEX_ENDPOINT"
"""Variable with another API endpoint, as `HOST[:PORT]` (gRPC) or `https://HOST` (REST): Private Service Connect."""
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
    endpoint = os.environ.get(ENDPOINT) or None
    transport = "rest" if endpoint is not None and "://" in endpoint else "grpc"
    try:
        aiplatform.init(
            project=name.project, location=name.location, api_endpoint=endpoint, api_transport=transport
        )
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
        VertexError: in one line: no such cluster, not running, other versions there, or its dashboard cannot be
            reached.
        JobError: the dashboard does not let us in, or is no Ray.
    """
    name = cluster_name(address, project, location)
    shown = f"--address {SCHEME}{name.name}"
    cluster = get_cluster(name)
    checked_versions()
    if cluster.state != "RUNNING":
        raise VertexError(
            f"{shown}: the cluster is {cluster.state}, not RUNNING; "
            f"see tune-whisper cluster --address {SCHEME}{name.name}"
        )
    if difference := version_difference(cluster):
        raise VertexError(f"{shown}: {difference}")
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


def checked_versions(ray_version: str | None = None, python_version: str | None = None) -> tuple[str, str]:
    """Ray (as 2.47) and Python (as 3.11) of a cluster, by default ours; `VertexError` where Vertex AI has not both."""
    import ray
    from google.cloud.aiplatform.vertex_ray.util import _validation_utils as sdk

    ray_version = ray_version or ray.__version__
    python_version = python_version or minor(platform.python_version())
    exact = {
        python: {each: sdk.SUPPORTED_RAY_VERSIONS[each] for each in rays}
        for python, rays in sdk.SUPPORTED_RAY_VERSIONS_FROM_PYTHON_VERSIONS.items()
    }
    short, runs = minor(ray_version), exact.get(python_version, {})
    if short not in runs or ray_version not in (short, runs[short]):
        known = ", ".join(
            f"Ray {each} with Python {python}" for python, rays in exact.items() for each in rays.values()
        )
        raise VertexError(
            f"Ray {ray_version} with Python {python_version}: Vertex AI does not run them; it runs {known}"
        )
    return short, python_version


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
        VertexError: it cannot be read or has mistakes; one line for each, `FILE:LINE: key=value: ...`.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no UTF-8 text"
        raise VertexError(
            f"{path}: cannot be read ({reason}); give a YAML file as docs/vertex_cluster.yaml"
        ) from error
    problems = Problems()
    root = compose(text, problems) if text.strip() else None
    if not text.strip():
        problems.add(1, "the file is empty; docs/vertex_cluster.yaml is a whole one")
    values: dict[str, Any] = {}
    if root is not None:
        pool = _import_sdk().Resources
        types = {field.name: str for field in dataclasses.fields(ClusterFile)}
        values = _read_fields({**types, "head": pool, "workers": [pool], "labels": dict}, "", root, problems)
        for key in ("name", "head", "workers"):
            if isinstance(root, yaml.MappingNode) and not values.get(key):
                problems.add(root, f"{key}: is missing")
        if not problems.found:
            for each in (values["head"], *values["workers"]):
                each.accelerator_count = each.accelerator_count or (1 if each.accelerator_type else 0)
            _check_pools(root, values["head"], values["workers"], problems)
    if problems.found:
        raise VertexError("\n".join(f"{path}:{line}: {text}" for line, text in sorted(problems.found)))
    return ClusterFile(**values)


def _read_fields(types: Mapping[str, Any], where: str, node: yaml.Node, problems: Problems) -> dict[str, Any]:
    """The values of a mapping, each of the type that its key has."""
    if not isinstance(node, yaml.MappingNode):
        problems.add(node, f"{where}must be a mapping with some of {', '.join(types)}")
        return {}
    values = {}
    for key, key_node, value_node in items(node, problems, where):
        if key in types:
            values[key] = _read_value(types[key], key, where, value_node, problems)
        else:
            near = nearest(key, types)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(types)}"
            problems.add(key_node, f"{where}{key}: unknown setting; {hint}")
    return values


def _read_value(kind: Any, key: str, where: str, node: yaml.Node, problems: Problems) -> Any:
    """One value: a text, a number, a mapping of texts, or one of the SDK's dataclasses; of the last also several."""
    if isinstance(kind, list):
        nodes = node.value if isinstance(node, yaml.SequenceNode) else [node]
        return [_read_value(kind[0], key, where, each, problems) for each in nodes]
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        fields = {name: (*typing.get_args(hint), hint)[0] for name, hint in hints.items()}
        return kind(**_read_fields(fields, f"{where}{key}: ", node, problems))  # type: ignore[operator]
    if kind is dict and isinstance(node, yaml.MappingNode):
        return {name: str(scalar(each, as_text=True)) for name, _, each in items(node, problems, f"{key}: ")}
    value = scalar(node, as_text=kind is str)  # as text: YAML would read the version 3.10 as the number 3.1
    if type(value) is not kind:
        meaning = {str: "a text", int: "a whole number", dict: "a mapping, as {team: speech}"}[kind]
        problems.add(node, f"{where}{key}={value}: must be {meaning}")
    elif key == "accelerator_type":
        from google.cloud.aiplatform_v1beta1.types import AcceleratorType

        names = [each.name for each in AcceleratorType if each.value]
        if value not in names:
            near = nearest(value.upper().replace("-", "_"), names)
            hint = f"did you mean {near}?" if near else f"must be one of {', '.join(names)}"
            problems.add(node, f"{where}{key}={value}: {hint}")
    return value


def _check_pools(root: yaml.Node, head: Resources, workers: list[Resources], problems: Problems) -> None:
    """What Google's SDK would create in another way than the file says, or could not scale afterwards."""
    node = next(value for key, value in root.value if key.value == "workers")
    seen = []
    for pool in workers:
        kind, disk = _kind(pool), (pool.boot_disk_type, pool.boot_disk_size_gb, pool.custom_image)
        if kind in seen:
            problems.add(node, f"workers: {pool.machine_type}: two pools of the same machines; make them one")
        if kind == _kind(head) and disk != (head.boot_disk_type, head.boot_disk_size_gb, head.custom_image):
            problems.add(
                node,
                f"workers: {pool.machine_type}: the head's machine, so boot disk and custom_image must be the head's",
            )
        seen.append(kind)


def _kind(pool: Resources) -> tuple[str | None, str | None, int | None]:
    """What makes two pools the same to Vertex AI."""
    return pool.machine_type, pool.accelerator_type, pool.accelerator_count


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

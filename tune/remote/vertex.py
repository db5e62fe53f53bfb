"""Ray on Vertex AI through Google's own SDK, `google.cloud.aiplatform.vertex_ray`.

Here are only the checks before its calls, one line for each mistake after them, and the reading of a cluster's file,
whose pools are the SDK's `Resources`. Credentials are those that Google's libraries find (application default
credentials). docs/clusters.md says what the tests exercise of this and what they cannot.
"""

from __future__ import annotations

import contextlib
import io
import logging
import os
import re
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import yaml

from trainer.yaml_nodes import nearest
from tune.remote.client import cluster_errors, version_difference
from tune.util.errors import UserError

if TYPE_CHECKING:
    from google.cloud.aiplatform.vertex_ray.util.resources import Cluster, Resources
    from ray.job_submission import JobSubmissionClient

SCHEME = "vertex_ray://"
_NOT_INSTALLED = "--address vertex_ray://: needs Google's SDK; pip install 'tune-whisper[vertex]'"
_LOGIN = "run gcloud auth application-default login"
_TEXTS = ("name", "project", "location", "ray_version", "python_version", "network", "service_account")
_KEYS = (*_TEXTS, "head", "workers", "labels")
"""What a cluster's file can hold; `name`, `head` and `workers` it must."""


class VertexError(UserError):
    """Vertex AI cannot be used as asked; says what to do."""


class ClusterName(NamedTuple):
    """A cluster on Vertex AI by project, location and name."""

    project: str
    location: str
    name: str

    @property
    def resource(self) -> str:
        """The name as the API takes it; behind `SCHEME` the address for `--address` and Ray's job client."""
        return f"projects/{self.project}/locations/{self.location}/persistentResources/{self.name}"

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
    project = project or _default_project()
    if not project:
        raise VertexError("--project: missing; give the Google Cloud project, or set GOOGLE_CLOUD_PROJECT")
    region = os.environ.get("GOOGLE_CLOUD_REGION") or os.environ.get(
        "CLOUD_ML_REGION"
    )  # as the SDK reads them
    return ClusterName(project, location or region or "us-central1", rest)


def _default_project() -> str | None:
    """The project of the environment or the credentials, if they name one; raises `VertexError` without any."""
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


def _import_sdk() -> Any:
    """Google's `vertex_ray` module; raises `VertexError` where the extra is missing or does not work with our Ray."""
    logging.getLogger("google").setLevel(logging.ERROR)
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            from google.cloud.aiplatform import vertex_ray
    except ImportError as error:
        raise VertexError(f"{_NOT_INSTALLED} ({_one_line(error)})") from error
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
    _default_project()
    vertex_ray = _import_sdk()
    from google.api_core.exceptions import GoogleAPIError
    from google.auth.exceptions import GoogleAuthError
    from google.cloud import aiplatform

    try:
        with contextlib.redirect_stdout(sys.stderr if progress else io.StringIO()):
            aiplatform.init(project=name.project, location=name.location)
            yield vertex_ray
    except (GoogleAPIError, GoogleAuthError, ValueError, TypeError, RuntimeError) as error:
        wrapped = isinstance(error, (ValueError, RuntimeError)) and error.__cause__
        raise VertexError(f"{SCHEME}{name}: {_explain(wrapped or error)}") from error


def _explain(error: BaseException) -> str:
    """What an error of Google's libraries says, and what to do."""
    from google.api_core import exceptions
    from google.auth.exceptions import GoogleAuthError

    text = _one_line(error)
    # Over gRPC a token that cannot be got comes as "unavailable". The text is not shown: it may quote the answer.
    if isinstance(error, GoogleAuthError) or "metadata from plugin failed" in text:
        return f"credentials cannot be used for a token; {_LOGIN}"
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
    problem = None
    if cluster.state != "RUNNING":
        problem = f"the cluster is {cluster.state}, not RUNNING; see tune-whisper cluster --address {SCHEME}{name.name}"
    elif cluster.ray_version:  # a custom image hides it
        problem = version_difference(cluster.ray_version, cluster.python_version)
    if problem:
        raise VertexError(f"--address {SCHEME}{name.name}: {problem}")
    return dashboard_client(name)


def dashboard_client(name: ClusterName) -> JobSubmissionClient:
    """A job client without the checks, to look at a cluster."""
    from ray.job_submission import JobSubmissionClient

    with vertex_sdk(name), cluster_errors(SCHEME + name.name):
        return JobSubmissionClient(SCHEME + name.resource)


def get_cluster(name: ClusterName) -> Cluster:
    """Look a cluster up; raises `VertexError` where it cannot be found or read."""
    with vertex_sdk(name) as vertex_ray:
        return vertex_ray.get_ray_cluster(name.resource)


def read_cluster_file(path: Path) -> dict[str, Any]:
    """Read a cluster's YAML file: its keys, with `head` as the SDK's `Resources` and `workers` as a list of them.

    What machines there are Vertex AI itself knows, and the SDK checks the types of what `Resources` hold.

    Raises:
        VertexError: it cannot be read, or has a mistake.
    """
    try:
        content: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else _one_line(error)
        raise VertexError(
            f"{path}: cannot be read ({reason}); give a YAML file as docs/vertex_cluster.yaml"
        ) from error
    try:
        _check_keys("", content, _KEYS)
        for key in ("name", "head", "workers"):
            if not content.get(key):
                raise VertexError(f"{key}: is missing; docs/vertex_cluster.yaml is a whole file")
        for key in _TEXTS:
            if not isinstance(content.get(key, ""), str):  # a version such as 3.10 would be the number 3.1
                raise VertexError(f"{key}={content[key]}: must be a text in quotes")
        if not isinstance(content.get("labels", {}), dict):
            raise VertexError(f"labels={content['labels']}: must be a mapping, as {{team: speech}}")
        workers = content["workers"] if isinstance(content["workers"], list) else [content["workers"]]
        content["head"] = _pool("head", content["head"])
        content["workers"] = [_pool("workers", each) for each in workers]
        _check_pools(content["head"], content["workers"])
    except VertexError as error:
        raise VertexError(f"{path}: {error}") from None
    return content


def _check_keys(where: str, content: Any, known: Collection[str]) -> None:
    if not isinstance(content, dict):
        raise VertexError(f"{where}must be a mapping with some of {', '.join(known)}")
    for key in content:
        if key not in known:
            near = nearest(str(key), known)
            hint = f"did you mean {near}?" if near else f"known are {', '.join(known)}"
            raise VertexError(f"{where}{key}: unknown setting; {hint}")


def _pool(where: str, content: Any) -> Resources:
    """The SDK's description of machines from a mapping with its names; GPUs are one a machine unless counted."""
    _import_sdk()
    from google.cloud.aiplatform.vertex_ray.util.resources import AutoscalingSpec, Resources
    from google.cloud.aiplatform_v1beta1.types import AcceleratorType

    _check_keys(f"{where}: ", content, vars(Resources()))
    pool = Resources(**content)
    if pool.autoscaling_spec is not None:
        _check_keys(f"{where}: autoscaling_spec: ", pool.autoscaling_spec, vars(AutoscalingSpec()))
        pool.autoscaling_spec = AutoscalingSpec(**content["autoscaling_spec"])
    gpu, gpus = pool.accelerator_type, list(AcceleratorType.__members__)
    if gpu and gpu not in gpus:
        near = nearest(str(gpu).upper().replace("-", "_"), gpus)
        hint = f"did you mean {near}?" if near else f"must be one of {', '.join(gpus)}"
        raise VertexError(f"{where}: accelerator_type={gpu}: {hint}")
    pool.accelerator_count = pool.accelerator_count or (1 if gpu else 0)
    return pool


def _check_pools(head: Resources, workers: list[Resources]) -> None:
    """What Google's SDK would create in another way than the file says, or could not scale afterwards."""
    machines: list[tuple[str | None, str | None, int | None]] = []
    for pool in (head, *workers):
        where = f"workers: {pool.machine_type}"
        machine = (pool.machine_type, pool.accelerator_type, pool.accelerator_count)
        if machine in machines[1:]:
            raise VertexError(f"{where}: two pools of the same machines; make them one")
        disks = {(each.boot_disk_type, each.boot_disk_size_gb, each.custom_image) for each in (head, pool)}
        if machine in machines and len(disks) > 1:
            raise VertexError(
                f"{where}: the head's machine, so boot disk and custom_image must be the head's"
            )
        machines.append(machine)


def describe_pool(pool: Resources) -> str:
    """As `4 n1-standard-16 with 1 NVIDIA_TESLA_T4 each`."""
    scaling = pool.autoscaling_spec
    count = f"{scaling.min_replica_count} to {scaling.max_replica_count}" if scaling else str(pool.node_count)
    gpus = f" with {pool.accelerator_count} {pool.accelerator_type} each" if pool.accelerator_type else ""
    return f"{count} {pool.machine_type}{gpus}"

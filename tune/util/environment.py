"""What surrounds a process: the user's cache, variables that workers must not see, versions of packages."""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path

CREDENTIAL_VARIABLES = (
    *("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"),
    *("MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_AWS_SIGV4", "MLFLOW_TRACKING_CLIENT_CERT_PATH"),
    "TUNE_WHISPER_NOTIFY",
)
"""What would let a process write to the store, or post notifications."""
_PACKAGES = (
    *("tune-whisper", "ray", "torch", "transformers", "datasets", "optuna", "mlflow", "accelerate"),
    *("evaluate", "jiwer", "numpy", "pyarrow", "soundfile", "soxr", "deepspeed"),
)


def user_cache() -> Path:
    """The folder for what can be had again: working copies, shared folders, features. Not made here."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    root = Path(base) if Path(base).is_absolute() else Path.home() / ".cache"
    return root / "tune-whisper"


def worker_environment() -> dict[str, str]:
    """Blanks for the `env_vars` of Ray's runtime environment: workers report to the driver, never to a store.

    Ray's processes inherit the driver's environment, and with it the credentials that the recorder needs.
    """
    return {name: "" for name in CREDENTIAL_VARIABLES if name in os.environ}


@contextlib.contextmanager
def changed_environment(variables: Mapping[str, str]) -> Iterator[None]:
    """The block, and processes that it starts, have these variables; in the end they are as before."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def set_ray_variables() -> None:
    """What Ray reads when it is imported, where nobody decided otherwise.

    Its token (Ray 2.52 and newer) is sent with everything, where there is one: Ray itself does so only for a cluster
    that it finds or starts on this machine, not for an address that it is given; a cluster that wants no token ignores
    it. Under `uv run` it would upload the working folder, recordings and all, and refuse it above 512 MiB.
    """
    os.environ.setdefault("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ.setdefault("RAY_AUTH_MODE", "token")


def package_versions() -> dict[str, str]:
    """Python and the packages that shape a result; one that is not installed is left out."""
    import importlib.metadata  # which reads mail: a tenth of what `--help` takes

    versions = {"python": platform.python_version(), "platform": platform.platform()}
    for name in _PACKAGES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:  # an optional one, such as deepspeed
            continue
    return versions

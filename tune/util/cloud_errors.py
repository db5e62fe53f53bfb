"""The exception classes with which the clients of stores and databases say that a store is away or refuses."""

from __future__ import annotations

import sys
from types import MappingProxyType

_CLASSES = MappingProxyType(
    {
        # Object stores: Amazon, Google, Azure, and what fsspec's file systems are made of.
        "botocore.exceptions": ("BotoCoreError", "ClientError"),
        "boto3.exceptions": ("Boto3Error",),
        "google.api_core.exceptions": ("GoogleAPIError",),
        "google.auth.exceptions": ("GoogleAuthError",),
        "google.resumable_media.common": ("InvalidResponse", "DataCorruption"),
        "azure.core.exceptions": ("AzureError",),
        "gcsfs.retry": ("HttpError",),
        "pyarrow.lib": ("ArrowException",),
        "paramiko.ssh_exception": ("SSHException",),
        "ftplib": ("Error",),
        # HTTP, and answers that are not of the form that was agreed on.
        "aiohttp.client_exceptions": ("ClientError",),
        "httpx": ("HTTPError",),
        "httpx2": ("HTTPError",),
        "requests.exceptions": ("RequestException",),
        "urllib3.exceptions": ("HTTPError",),
        "google.protobuf.json_format": ("Error",),
        # Databases.
        "sqlalchemy.exc": ("SQLAlchemyError",),
        "alembic.util.exc": ("CommandError",),
    }
)
"""Base classes by the module that defines them; below `Exception` they have nothing in common."""


def cloud_errors(*others: type[Exception]) -> tuple[type[Exception], ...]:
    """What a client of a store may raise because of the store: `others`, and the classes of all clients imported.

    None is imported for this: what raises one has its module loaded. So it belongs right into the `except`, where
    it is evaluated once something was raised. `KeyError`, `TypeError` and the like are not in it: those are bugs,
    here or in a client, and trying again does not mend them.
    """
    classes = [*others, OSError, EOFError]  # FTP and SSH say so of a connection that ended
    for module, names in _CLASSES.items():
        loaded = sys.modules.get(module)
        classes += [kind for name in names if isinstance(kind := getattr(loaded, name, None), type)]
    return tuple(classes)

"""One object that is replaced only where nobody else has replaced it meanwhile: a conditional PUT.

S3 is asked by boto3, Google Cloud Storage by its own client. For other stores, and where the client is not
installed, what is there is compared first, and what was written is read back a moment later: best effort.
"""

from __future__ import annotations

import dataclasses
import datetime
import email.utils
import functools
import os
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

from tune.experiments.object_stores.object_store import ObjectStore

_MOMENT = 1.0
"""Seconds before an object is read back where nothing refuses the second of two writers."""
_TIMEOUTS = (5.0, 15.0)
"""Seconds for connecting and for an answer: several attempts must fit into the time of a lease."""


class QuickerError(Exception):
    """The object is not, or not any more, the version that was to be replaced."""


class NotConditionalError(Exception):
    """The store takes no conditions, or no notice of them."""


@dataclasses.dataclass(frozen=True)
class Version:
    """One version of the object."""

    content: bytes
    tag: Any
    """Tells it from all others; what replaces it must name it."""
    age: Callable[[], float | None]
    """Seconds since it was written, by the store's clock; None where that cannot be known."""


class StoredObject:
    """An object of any store. Methods raise what the store's client does."""

    conditional = False

    def __init__(self, store: ObjectStore, name: str) -> None:
        self._store, self._name = store, name

    def read(self) -> Version | None:
        """The newest version; None where there is none."""
        if self._store.marks([self._name])[0] is None:
            return None
        # The time after the content: of one that is replaced in between, it is too young rather than too old.
        content, written = self._store.read(self._name), self._store.modified(self._name)

        def age() -> float | None:
            now = None if written is None else self._store.clock(self._name.rpartition("/")[0])
            return None if written is None or now is None else now - written

        return Version(content, content, age)

    def write(self, content: bytes, tag: Any) -> Any:
        """Replace the version with this tag (None: there is none) and return the new tag, or `QuickerError`."""
        seen = self.read()
        if (seen.tag if seen else None) != tag:
            raise QuickerError
        self._store.write(self._name, content)
        return content

    def confirm(self, content: bytes, tag: Any) -> None:
        """Make sure that what was just written is what counts, or `QuickerError`, `NotConditionalError`."""
        time.sleep(_MOMENT)
        seen = self.read()
        if seen is None or seen.tag != tag:
            raise QuickerError

    def _parts(self) -> tuple[str, str, dict[str, str], str | None]:
        """Bucket, key, what stands after `?`, and the endpoint that it names."""
        parts = urllib.parse.urlsplit(self._store.uri)
        query = dict(urllib.parse.parse_qsl(parts.query))
        host = query.get("endpoint_override")
        endpoint = f"{query.get('scheme', 'https')}://{host}" if host else None
        return parts.netloc, f"{parts.path}/{self._name}".lstrip("/"), query, endpoint


class _S3(StoredObject):
    conditional = True

    def __init__(self, store: ObjectStore, name: str) -> None:
        import boto3
        from botocore.config import Config

        super().__init__(store, name)
        bucket, key, query, endpoint = self._parts()
        self._place = {"Bucket": bucket, "Key": key}
        self._client: Any = boto3.Session().client(
            "s3",
            endpoint_url=endpoint,
            region_name=query.get("region"),
            config=Config(
                connect_timeout=_TIMEOUTS[0],
                read_timeout=_TIMEOUTS[1],
                retries={"mode": "standard", "total_max_attempts": 2},
                # Other makes of S3 refuse check sums that they do not know.
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
            ),
        )

    def read(self) -> Version | None:
        try:
            answer = self._client.get_object(**self._place)
        except self._client.exceptions.NoSuchKey:
            return None
        now = email.utils.parsedate_to_datetime(answer["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - answer["LastModified"]).total_seconds()
        return Version(answer["Body"].read(), answer["ETag"], lambda: age)

    def write(self, content: bytes, tag: Any) -> Any:
        condition = {"IfNoneMatch": "*"} if tag is None else {"IfMatch": tag}
        try:
            return self._client.put_object(**self._place, Body=content, **condition)["ETag"]
        except self._client.exceptions.ClientError as error:
            code, status = (
                error.response["Error"]["Code"],
                error.response["ResponseMetadata"]["HTTPStatusCode"],
            )
            if status in (409, 412) or (tag and code == "NoSuchKey"):
                raise QuickerError from error
            if code == "NotImplemented":
                raise NotConditionalError from error
            raise

    def confirm(self, content: bytes, tag: Any) -> None:
        # Older servers of other makes overwrite without a word: two writes that must be refused show it.
        for wrong in (None, f'"{"0" * 32}"'):
            try:
                self.write(content, wrong)
            except QuickerError:
                continue
            raise NotConditionalError


class _Google(StoredObject):
    conditional = True

    def __init__(self, store: ObjectStore, name: str) -> None:
        from google.auth.credentials import AnonymousCredentials
        from google.cloud import storage
        from google.cloud.storage.retry import DEFAULT_RETRY

        super().__init__(store, name)
        bucket, self._key, _, endpoint = self._parts()
        nobody = AnonymousCredentials() if bucket.startswith("anonymous@") else None
        client = storage.Client(None, nobody, client_options={"api_endpoint": endpoint} if endpoint else None)
        self._bucket = client.bucket(bucket.removeprefix("anonymous@"))
        self._patience = {"timeout": _TIMEOUTS, "retry": DEFAULT_RETRY.with_timeout(sum(_TIMEOUTS))}

    def read(self) -> Version | None:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        while (blob := self._bucket.get_blob(self._key, **self._patience)) is not None:
            generation, written = blob.generation, blob.time_created  # the download writes over them
            try:
                content = blob.download_as_bytes(if_generation_match=generation, **self._patience)
            except (NotFound, PreconditionFailed):
                continue  # replaced meanwhile
            return Version(content, generation, functools.partial(self._age, written))
        return None

    def _age(self, written: datetime.datetime) -> float:
        # The client keeps the Date of an answer to itself; an object that is written now tells it too.
        probe = self._bucket.blob(f"{self._key}.clock-{os.urandom(4).hex()}")
        probe.upload_from_string(b"tune-whisper", **self._patience)
        probe.delete(**self._patience)
        return float((probe.time_created - written).total_seconds())

    def write(self, content: bytes, tag: Any) -> Any:
        from google.api_core.exceptions import NotFound, PreconditionFailed

        blob = self._bucket.blob(self._key)
        try:
            blob.upload_from_string(content, if_generation_match=tag or 0, **self._patience)
        except PreconditionFailed as error:
            raise QuickerError from error
        except NotFound as error:
            if tag is None:  # there is no bucket
                raise
            raise QuickerError from error
        return blob.generation

    def confirm(self, content: bytes, tag: Any) -> None:
        """Google's store always minds conditions."""


def open_object(store: ObjectStore, name: str) -> StoredObject:
    """The object of this name, by the client that can do most for it."""
    try:
        if store.scheme == "gs":
            return _Google(store, name)
        if store.scheme == "s3":
            return _S3(store, name)
    except ImportError:
        pass  # the extra is not installed: best effort
    return StoredObject(store, name)

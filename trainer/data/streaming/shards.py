"""Shards of the hub, of an object store or of this machine, read row by row as `datasets` streams them."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import logging
import re
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import fsspec
from fsspec.implementations.arrow import ArrowFSWrapper

from trainer.config import TrainConfig
from trainer.data.embedded import RATE_COLUMN, content_or_path
from trainer.data.sources import BUCKETS, load_hub_dataset, split_role
from trainer.errors import DataError

if TYPE_CHECKING:
    import datasets

PATIENCE_SECONDS = 180.0
"""How long a source may give nothing, from its last clip on."""
_WAIT_SECONDS = 5.0
_BUCKET = "bucket"
_SHARDS = {".parquet": "parquet", ".tar": "webdataset"}
"""Kinds of shards that are found in folders, and the builder of `datasets` that reads each."""
_TAR_ROW_BYTES = 2048
"""Of a clip in a tar file beside its audio: headers of two members, filled up to whole blocks, and the text."""
_TAR_END = 1024
"""Zeros with which a tar file ends, at least."""

_logger = logging.getLogger(__name__)
_ItemT = TypeVar("_ItemT")


class _Bucket(ArrowFSWrapper):  # type: ignore[misc]
    """An object store for `datasets`, as `bucket://name/path`; credentials come from the environment."""

    protocol = _BUCKET

    def __init__(self, uri: str, **options: Any) -> None:
        import pyarrow.fs

        super().__init__(pyarrow.fs.FileSystem.from_uri(uri)[0], **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        return (
            path.removeprefix(f"{_BUCKET}://")
            if isinstance(path, str)
            else list(map(cls._strip_protocol, path))
        )


fsspec.register_implementation(_BUCKET, _Bucket, clobber=True)


@dataclasses.dataclass(frozen=True, eq=False)
class Shards:
    """One split as `datasets` streams it; can be sent to other processes."""

    origin: str
    """The source as the user names it."""
    dataset: datasets.IterableDataset
    files: Mapping[str, int]
    """Its shards with their sizes in bytes."""
    version: str = ""
    """Changes when they do."""
    options: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """With which `fsspec` opens them."""

    def __len__(self) -> int:
        return int(self.dataset.num_shards)

    def rows(self, shards: Iterable[int]) -> Iterator[dict[str, Any]]:
        """The rows of some shards, one shard after the other, audio undecoded.

        Raises:
            DataError: they cannot be read, or not any more and for longer than one waits.
        """
        import datasets

        # The client of the hub tries again for half a minute each time; 20 times that, and nobody hears of it.
        datasets.config.STREAMING_READ_MAX_RETRIES = datasets.config.STREAMING_OPEN_MAX_RETRIES = 1
        for shard in shards:
            part = self.dataset.shard(num_shards=len(self), index=shard)
            file = list(self.files)[shard] if len(self.files) == len(self) else next(iter(self.files), None)
            yield from _patiently(
                functools.partial(_rows_to_the_end, part, file, self.options), self.origin, file, self.options
            )


def _rows_to_the_end(
    dataset: datasets.IterableDataset, file: str | None, options: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """The rows of a shard; raises `_CutOffError` where it is a tar file without an end, which readers take for one."""
    yield from _plain_rows(dataset)
    if file is not None and file.lower().endswith(".tar") and _ending(file, options).strip(b"\0"):
        raise _CutOffError(f"{Path(file).name} is cut off: it lacks the zeros with which a tar file ends")


class _CutOffError(DataError):
    """A shard is not whole."""


def _ending(file: str, options: Mapping[str, Any]) -> bytes:
    """The last bytes of a file."""
    with fsspec.open(file, **options) as opened:
        opened.seek(-min(_TAR_END, opened.seek(0, 2)), 2)
        return bytes(opened.read())


def _answers(file: str | None, options: Mapping[str, Any]) -> bool:
    """Whether a file can be read, whatever is in it."""
    try:
        return file is not None and bool(_ending(file, options))
    except _broken():
        return False


def _plain_rows(dataset: datasets.IterableDataset) -> Iterator[dict[str, Any]]:
    """Rows with names of classes, and the values of objects as columns of their own; lists are left out."""
    names = {
        name: feature.names
        for name, feature in (dataset.features or {}).items()
        if hasattr(feature, "names") and hasattr(feature, "int2str")
    }
    for row in dataset:
        plain: dict[str, Any] = {}
        rate = row.get(RATE_COLUMN)
        for name, value in row.items():
            sample = value
            while isinstance(sample, list) and sample:
                sample = sample[0]
            listed = bool(rate) and isinstance(value, list) and isinstance(sample, int | float)
            if listed or (isinstance(value, dict) and value.get("array") is not None):
                path = None if listed else value.get("path")
                plain[name] = {"bytes": content_or_path(value, (), rate), "path": path}
            elif isinstance(value, bytes):
                plain[name] = {"bytes": value, "path": None}
            elif isinstance(value, dict) and "bytes" not in value:
                plain |= {key: one for key, one in value.items() if not isinstance(one, list | dict | bytes)}
            elif name in names:
                plain[name] = None if value is None or value < 0 else names[name][value]
            elif not isinstance(value, list):
                plain[name] = value
        yield plain


def _patiently(
    read: Callable[[], Iterator[_ItemT]], origin: str, file: str | None, options: Mapping[str, Any]
) -> Iterator[_ItemT]:
    """All that `read` gives; where it breaks off it is called again after a while, and what was there already skipped.

    Raises:
        DataError: nothing more came for `PATIENCE_SECONDS`, or what is there cannot be read at all: twice the same is
            wrong with a `file` of which the source gives the bytes.
    """
    done, last, before = 0, time.monotonic(), ("", 0)
    while True:
        try:
            for item in itertools.islice(read(), done, None):
                done += 1
                yield item
                last = time.monotonic()
            return
        except _CutOffError as error:
            raise DataError(f"data={origin!r}: {error}; write it again, then go on with --resume") from error
        except _broken() as error:
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            damaged = before == (reason, done) and _answers(file, options)
            before = (reason, done)
            waits = _passes(error) and not damaged and not is_local(origin)
            if not waits or time.monotonic() - last > PATIENCE_SECONDS:
                waited = f" for {PATIENCE_SECONDS:g} s" if waits else ""
                raise DataError(
                    f"data={origin!r}: cannot be read{waited}: {reason}; look at the network and the files, then go on "
                    "with --resume"
                ) from error
            _logger.warning("data=%r: %s; it is tried again", origin, reason)
            time.sleep(_WAIT_SECONDS)


def _broken() -> tuple[type[Exception], ...]:
    """What readers raise where a connection breaks off or a file is not what it should be."""
    import pyarrow as pa
    from datasets.exceptions import DatasetsError

    of_connections = (OSError, _no_answer(), EOFError)
    return (*of_connections, tarfile.TarError, pa.ArrowException, DatasetsError, ValueError, TypeError)


def _no_answer() -> type[Exception]:
    """What the hub's client raises where it gets no answer, httpx's or httpx2's by version."""
    from huggingface_hub.errors import HfHubHTTPError

    return HfHubHTTPError.__bases__[0]


def _passes(error: Exception) -> bool:
    """Whether an error may be gone when one tries again."""
    import pyarrow as pa

    if isinstance(error, FileNotFoundError | PermissionError):
        return False
    return isinstance(error, (OSError, _no_answer(), tarfile.TarError, pa.ArrowException, EOFError))


def is_local(origin: str) -> bool:
    return "://" not in origin and Path(origin).expanduser().exists()


def open_shards(config: TrainConfig) -> tuple[dict[str, Shards], list[str]]:
    """All splits of `config.data` by the names that the source gives them (`train` where it gives none), and notes.

    Raises:
        DataError: nothing is there, or nothing that can be streamed.
    """
    from datasets import Audio, Value, load_dataset_builder
    from datasets.utils.logging import set_verbosity

    set_verbosity(logging.CRITICAL)  # what goes wrong is told once, by who calls us
    sound = {"bytes": Value("binary"), "path": Value("string")}
    notes: list[str] = []
    options: dict[str, Any] = {}
    if config.data.startswith(BUCKETS) or Path(config.data).expanduser().exists():
        kind, files, options = _find_shards(config.data)
        with stream_errors(config):
            builder = load_dataset_builder(kind, data_files=files, **options)
    else:
        builder, notes = load_hub_dataset(config, load_dataset_builder)
    shards = {}
    with stream_errors(config):
        for name, streamed in builder.as_streaming_dataset().items():
            dataset = streamed
            # Of its own kind `datasets` decodes audio, and encodes that of tar files, which takes torchcodec.
            for column in [
                name for name, kind in (streamed.features or {}).items() if isinstance(kind, Audio)
            ]:
                dataset = dataset.cast_column(column, sound)
            urls = (builder.config.data_files or {}).get(name, ())
            opening = options.get("storage_options", {})
            version = json.dumps(getattr(urls, "origin_metadata", ()))
            shards[str(name)] = Shards(config.data, dataset, _sizes(urls, opening), version, opening)
    return shards, notes


@contextlib.contextmanager
def stream_errors(config: TrainConfig) -> Iterator[None]:
    try:
        yield
    except _broken() as error:
        reason = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(f"data={config.data!r}: cannot be streamed: {reason}") from error


def _sizes(urls: Sequence[str], options: Mapping[str, Any]) -> dict[str, int]:
    opened = ((url, fsspec.url_to_fs(url, **options)) for url in urls)
    return {url: int(filesystem.info(path)["size"]) for url, (filesystem, path) in opened}


def estimate_rows(urls: Mapping[str, int], options: Mapping[str, Any], row_bytes: float) -> float:
    """About how many rows some shards have, of which each has so many bytes of audio on average."""
    import pyarrow.parquet as pq

    for url, size in urls.items():
        if url.lower().endswith(".parquet") and size:
            with fsspec.open(url, **options) as file:
                return float(pq.read_metadata(file).num_rows * sum(urls.values()) / size)
    return sum(urls.values()) / (row_bytes + _TAR_ROW_BYTES)


def _find_shards(data: str) -> tuple[str, dict[str, list[str]], dict[str, Any]]:
    """Builder, files by split and options of `datasets` for a folder or bucket with shards, or a single one."""
    import pyarrow.fs

    options: dict[str, Any] = {}
    prefix = ""
    try:
        if data.startswith(BUCKETS):
            uri = data
            if (
                uri.startswith("gs://") and "retry_limit_seconds" not in uri
            ):  # by itself Google's client tries for 15 min
                uri += ("&" if "?" in uri else "?") + "retry_limit_seconds=20"
            filesystem, root = pyarrow.fs.FileSystem.from_uri(uri)
            prefix, options = f"{_BUCKET}://", {"storage_options": {_BUCKET: {"uri": uri}}}
        else:
            filesystem, root = pyarrow.fs.LocalFileSystem(), str(Path(data).expanduser().absolute())
        root = root.rstrip("/")
        if filesystem.get_file_info([root])[0].is_file:
            paths = [root]
        else:
            selector = pyarrow.fs.FileSelector(root, recursive=True)
            paths = sorted(info.path for info in filesystem.get_file_info(selector) if info.is_file)
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise DataError(f"data={data!r}: cannot be read: {reason}") from error
    by_kind: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        if (kind := _SHARDS.get(Path(path).suffix.lower())) is not None:
            split = _split_of(path.removeprefix(root))
            by_kind.setdefault(kind, {}).setdefault(split, []).append(prefix + path)
    if len(by_kind) != 1:
        there = " and ".join(by_kind) or ", ".join(Path(path).name for path in paths[:8]) or "nothing"
        raise DataError(
            f"data={data!r}: streaming reads shards of one kind, .parquet or .tar (WebDataset), named by their split "
            f"(train-00000.parquet, validation/0000.tar); found {there}; leave streaming out for other data"
        )
    [(kind, files)] = by_kind.items()
    return kind, files, options


def _split_of(path: str) -> str:
    """The split that a shard belongs to, by its name or by a folder that it is in."""
    parts = [*Path(path).parts[:-1], Path(path).stem]
    words = [word for part in reversed(parts) for word in re.split(r"[^A-Za-z]+", part)]
    return next((word for word in words if split_role(word)), "train")

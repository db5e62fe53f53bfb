"""Shards of the hub, of an object store or of this machine, read row by row as `datasets` streams them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import logging
import re
import tarfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import pyarrow as pa
import pyarrow.fs
import pyarrow.parquet as pq
from fsspec.implementations.arrow import ArrowFSWrapper

from trainer.config import TrainConfig
from trainer.data.embedded import RATE_COLUMN, content_or_path
from trainer.data.sources import BUCKETS, load_hub_dataset, split_role
from trainer.errors import DataError, one_line
from trainer.model.pretrained import no_answer

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


class _Bucket(ArrowFSWrapper):  # type: ignore[misc]
    """An object store for `datasets`, as `bucket://name/path`; credentials come from the environment."""

    protocol = _BUCKET

    def __init__(self, uri: str, **options: Any) -> None:
        super().__init__(pyarrow.fs.FileSystem.from_uri(uri)[0], **options)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if not isinstance(path, str):
            return list(map(cls._strip_protocol, path))
        return path.removeprefix(f"{_BUCKET}://")


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
        return itertools.chain.from_iterable(map(self._rows_of, shards))

    def _rows_of(self, shard: int) -> Iterator[dict[str, Any]]:
        """The rows of one shard; where reading breaks off it begins again after a while, without those that were given.

        Raises:
            DataError: nothing more came for `PATIENCE_SECONDS`, or what is there cannot be read at all: twice the same
                is wrong with a file of which the source gives the bytes.
        """
        part = self.dataset.shard(num_shards=len(self), index=shard)
        file = list(self.files)[shard] if len(self.files) == len(self) else next(iter(self.files), None)
        done, last, before = 0, time.monotonic(), ("", 0)
        while True:
            try:
                for row in itertools.islice(_plain_rows(part), done, None):
                    done += 1
                    yield row
                    last = time.monotonic()
                if file is not None and file.lower().endswith(".tar") and self._ending(file).strip(b"\0"):
                    raise DataError(  # readers take it for the end
                        f"data={self.origin!r}: {Path(file).name} is cut off: it lacks the zeros with which a tar file "
                        "ends; write it again, then go on with --resume"
                    )
                return
            except _broken() as error:
                reason = one_line(error)
                damaged = before == (reason, done) and self._answers(file)
                before = (reason, done)
                lasting = isinstance(error, FileNotFoundError | PermissionError) or not isinstance(
                    error, _lost()
                )
                waits = not (lasting or damaged or is_local(self.origin))
                if not waits or time.monotonic() - last > PATIENCE_SECONDS:
                    waited = f" for {PATIENCE_SECONDS:g} s" if waits else ""
                    raise DataError(
                        f"data={self.origin!r}: cannot be read{waited}: {reason}; check the network and the files, "
                        "then go on with --resume"
                    ) from error
                _logger.warning("data=%r: %s; it is tried again", self.origin, reason)
                time.sleep(_WAIT_SECONDS)

    def _ending(self, file: str) -> bytes:
        with fsspec.open(file, **self.options) as opened:
            opened.seek(-min(_TAR_END, opened.seek(0, 2)), 2)
            return bytes(opened.read())

    def _answers(self, file: str | None) -> bool:
        """Whether a file can be read, whatever is in it."""
        try:
            return file is not None and bool(self._ending(file))
        except _broken():
            return False


def _plain_rows(dataset: datasets.IterableDataset) -> Iterator[dict[str, Any]]:
    """Rows with names of classes, and the values of objects as columns of their own; lists are left out."""
    from datasets import ClassLabel

    names = {
        name: kind.names for name, kind in (dataset.features or {}).items() if isinstance(kind, ClassLabel)
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


def _lost() -> tuple[type[Exception], ...]:
    """What readers raise where a connection breaks off; it may be gone when one tries again."""
    return (OSError, no_answer(), EOFError, tarfile.TarError, pa.ArrowException)


def _broken() -> tuple[type[Exception], ...]:
    """The same, and what they raise where a file is not what it should be."""
    from datasets.exceptions import DatasetsError

    return (*_lost(), DatasetsError, ValueError, TypeError)


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
        reader, files, options = _find_shards(config.data)
        with stream_errors(config):
            builder = load_dataset_builder(reader, data_files=files, **options)
    else:
        builder, notes = load_hub_dataset(config, load_dataset_builder)
    shards = {}
    with stream_errors(config):
        for name, streamed in builder.as_streaming_dataset().items():
            dataset = streamed
            # Of its own kind `datasets` decodes audio, and encodes that of tar files, which takes torchcodec.
            for column, kind in (streamed.features or {}).items():
                if isinstance(kind, Audio):
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
        raise DataError(f"data={config.data!r}: cannot be streamed: {one_line(error)}") from error


def _sizes(urls: Sequence[str], options: Mapping[str, Any]) -> dict[str, int]:
    opened = ((url, fsspec.url_to_fs(url, **options)) for url in urls)
    return {url: int(filesystem.info(path)["size"]) for url, (filesystem, path) in opened}


def estimate_rows(urls: Mapping[str, int], options: Mapping[str, Any], row_bytes: float) -> float:
    """About how many rows some shards have, of which each has so many bytes of audio on average."""
    for url, size in urls.items():
        if url.lower().endswith(".parquet") and size:
            with fsspec.open(url, **options) as file:
                return float(pq.read_metadata(file).num_rows * sum(urls.values()) / size)
    return sum(urls.values()) / (row_bytes + _TAR_ROW_BYTES)


def _find_shards(data: str) -> tuple[str, dict[str, list[str]], dict[str, Any]]:
    """Builder, files by split and options of `datasets` for a folder or bucket with shards, or a single one."""
    options: dict[str, Any] = {}
    prefix = ""
    try:
        if data.startswith(BUCKETS):
            uri = data
            # By itself Google's client tries for a quarter of an hour.
            if uri.startswith("gs://") and "retry_limit_seconds" not in uri:
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
        raise DataError(f"data={data!r}: cannot be read: {one_line(error)}") from error
    by_kind: dict[str, dict[str, list[str]]] = {}
    for path in paths:
        if (kind := _SHARDS.get(Path(path).suffix.lower())) is not None:
            split = _split_of(path.removeprefix(root))
            by_kind.setdefault(kind, {}).setdefault(split, []).append(prefix + path)
    if len(by_kind) != 1:
        there = " and ".join(by_kind) or ", ".join(Path(path).name for path in paths[:8]) or "nothing"
        raise DataError(
            f"data={data!r}: streaming reads shards of one kind, .parquet or .tar (WebDataset), named by their split "
            f"(train-00000.parquet, validation/0000.tar); found {there}; remove streaming for other data"
        )
    [(kind, files)] = by_kind.items()
    return kind, files, options


def _split_of(path: str) -> str:
    """The split that a shard belongs to, by its name or by a folder that it is in."""
    parts = [*Path(path).parts[:-1], Path(path).stem]
    words = [word for part in reversed(parts) for word in re.split(r"[^A-Za-z]+", part)]
    return next((word for word in words if split_role(word)), "train")

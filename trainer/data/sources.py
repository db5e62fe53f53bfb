"""Where data comes from: tells the kinds of source apart and reads each, also of the hub, as tables, one per split."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.config import TrainConfig
from trainer.data.subtitles import find_subtitled
from trainer.data.tables import MANIFEST_SUFFIXES, Table, read_manifest, table_of_dataset
from trainer.errors import DataError
from trainer.languages import language_code

BUCKETS = ("s3://", "gs://")
"""How addresses of object stores begin."""
DEMO_DATA = Path(__file__).resolve().parents[1] / "demo" / "data"

#: Names under which releases publish their splits.
SPLIT_ALIASES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "eval"),
    "test": ("test", "testing"),
}


def split_role(name: str) -> str | None:
    """The part that a split of this name plays in a training (`dev` is `validation`); none for other names."""
    return next((role for role, names in SPLIT_ALIASES.items() if name.lower() in names), None)


_SPLIT_NAMES = frozenset(name for names in SPLIT_ALIASES.values() for name in names)


def read_source(config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    """All rows of `config.data`.

    Returns:
        Tables by the name that the source gives the split (`""` where it gives none), and notes for the user.

    Raises:
        DataError: nothing is there, or it is none of the known kinds.
    """
    if config.data == "demo":
        return _read_folder(DEMO_DATA, config)
    try:
        path = Path(config.data).expanduser()
    except RuntimeError as error:
        raise DataError(f"data={config.data!r}: nobody here has this name; write the path in full") from error
    try:
        return _read_path(path, config)
    except OSError as error:  # a folder that is not the user's, a name that is too long
        reason = (error.strerror or str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"data={config.data!r}: cannot be read: {reason}; give a file or folder that can be read"
        ) from error


def _read_path(path: Path, config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    if path.is_file():
        if path.suffix.lower() not in MANIFEST_SUFFIXES:
            kinds = ", ".join(MANIFEST_SUFFIXES)
            raise DataError(
                f"data={config.data!r}: {path.suffix or 'no suffix'} is no kind of manifest; use {kinds}"
            )
        return {"": [read_manifest(path)]}, []
    if path.is_dir():
        return _read_folder(path, config)
    if (
        re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", config.data)
        and path.suffix.lower() not in MANIFEST_SUFFIXES
    ):
        return read_hub_dataset(config)
    if config.data.startswith(BUCKETS):
        raise DataError(
            f"data={config.data!r}: data in a bucket can only be streamed; set streaming=true, or copy it to a folder"
        )
    raise DataError(
        f"data={config.data!r}: no such file or folder; give demo, a hub data set such as google/fleurs, a "
        "manifest (.csv, .tsv, .jsonl, .parquet) or a folder with data"
    )


def _read_folder(folder: Path, config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    if (folder / "dataset_dict.json").is_file() or (folder / "state.json").is_file():
        return _read_saved(folder, config)
    release = _common_voice_folder(folder, config)
    if release is not None:
        return _read_common_voice(release[0]), release[1]
    metadata = _metadata_file(folder)
    if metadata is not None:
        return {"": [read_manifest(metadata)]}, []
    for place in (folder, folder / "data"):
        splits = _split_files(place, folder)
        if splits:
            return splits, []
    splits = _split_folders(folder)
    if splits:
        return splits, []
    cues, notes = find_subtitled(folder, config)
    if cues:
        return {"": cues}, notes
    there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"data={config.data!r}: no data set in this folder; expected metadata.csv, train.csv (.tsv, .jsonl, "
        f".parquet), a Common Voice release, a save_to_disk folder, or recordings with subtitles; found {there}"
    )


def _read_saved(folder: Path, config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    """A folder written by `save_to_disk`."""
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"data={config.data!r}: a save_to_disk folder that cannot be loaded: {reason}"
        ) from error
    splits = loaded if isinstance(loaded, DatasetDict) else {"": loaded}
    return {str(name): [table_of_dataset(data, str(folder), (folder,))] for name, data in splits.items()}, []


def _common_voice_folder(folder: Path, config: TrainConfig) -> tuple[Path, list[str]] | None:
    """The folder of one language of a Common Voice release, and what to tell about the choice."""
    if _is_common_voice(folder):
        return folder, []
    languages = sorted(entry.name for entry in folder.iterdir() if entry.is_dir() and _is_common_voice(entry))
    if not languages:
        return None
    code = config.language or "en"
    if len(languages) == 1:
        [name] = languages
        notes = [] if language_code(name) == code else [only_language("the release", name, code)]
        return folder / name, notes
    for name in languages:
        if language_code(name) == code:
            return folder / name, [f"took {name} of the release's languages {', '.join(languages)}"]
    raise DataError(
        f"data={config.data!r}: the release has {', '.join(languages)}, not language={code}; set the "
        f"language, or give the folder of one language, such as {folder / languages[0]}"
    )


#: How `only_language` begins what it says; several places may notice the same.
ONLY_LANGUAGE = "has only language"


def only_language(place: str, value: str, code: str) -> str:
    """What the user is told where data of another language is taken."""
    return f"WARNING: {place} {ONLY_LANGUAGE} {value}, trained as {code} (set language to change that)"


def _is_common_voice(folder: Path) -> bool:
    return (folder / "clips").is_dir() and any((folder / f"{split}.tsv").is_file() for split in _SPLIT_NAMES)


def _read_common_voice(folder: Path) -> dict[str, list[Table]]:
    # A release holds the audio under clips/ and names the files without it.
    bases = (folder / "clips", folder)
    files = sorted(path for path in folder.glob("*.tsv") if path.stem in _SPLIT_NAMES)
    return {path.stem: [read_manifest(path, bases=bases)] for path in files}


def _metadata_file(folder: Path) -> Path | None:
    """The manifest of an `audiofolder`.

    Raises:
        DataError: there are several, which are not the same.
    """
    found = [path for suffix in MANIFEST_SUFFIXES if (path := folder / f"metadata{suffix}").is_file()]
    if len(found) > 1:
        _one_of({path.suffix: [read_manifest(path)] for path in found})
    return found[0] if found else None


def _split_files(place: Path, folder: Path) -> dict[str, list[Table]]:
    """Manifests named by split, whole (`dev.csv`) or in the hub's pieces (`train-00000-of-00002.parquet`).

    Raises:
        DataError: a split is there in several formats, which are not the same.
    """
    found: dict[str, dict[str, list[Table]]] = {}
    if place.is_dir():
        for path in sorted(place.iterdir()):
            name = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem)
            if path.suffix.lower() in MANIFEST_SUFFIXES and name.lower() in _SPLIT_NAMES:
                bases = (path.parent, folder, folder / "clips")
                formats = found.setdefault(name.lower(), {})
                formats.setdefault(path.suffix.lower(), []).append(read_manifest(path, bases=bases))
    return {name: _one_of(formats) for name, formats in found.items()}


def _one_of(formats: Mapping[str, list[Table]]) -> list[Table]:
    """Tables of the same rows, by the suffix of their files: the first; DataError where the rows are not the same."""
    ordered = [formats[suffix] for suffix in MANIFEST_SUFFIXES if suffix in formats]
    for other in ordered[1:]:
        if not _same_rows(ordered[0], other):
            first, second = (
                f"{Path(tables[0].origin).name} ({sum(map(len, tables)):,} rows)"
                for tables in (ordered[0], other)
            )
            raise DataError(
                f"{Path(other[0].origin).parent}: {first} and {second} have the same name and other rows; remove one, "
                "or put all rows into one file"
            )
    return ordered[0]


def _same_rows(first: Sequence[Table], second: Sequence[Table]) -> bool:
    """Whether two formats hold the same rows in whatever order, by the columns that all of them have."""
    every = [{name.lower(): values for name, values in one.columns.items()} for one in (*first, *second)]
    names = sorted(set.intersection(*(set(columns) for columns in every)))
    counts = [
        Counter(row for table in tables for row in zip(*(_cells(table, name) for name in names), strict=True))
        for tables in (first, second)
    ]
    return bool(names) and counts[0] == counts[1]


def _cells(table: Table, wanted: str) -> list[str]:
    values = next(values for name, values in table.columns.items() if name.lower() == wanted)
    return ["" if value is None else str(value).strip() for value in values]


def _split_folders(folder: Path) -> dict[str, list[Table]]:
    """Folders named by split, each with a manifest of its own or with Parquet files."""
    splits: dict[str, list[Table]] = {}
    for place in sorted(folder.iterdir()):
        if place.is_dir() and place.name.lower() in _SPLIT_NAMES:
            metadata = _metadata_file(place)
            files = [metadata] if metadata else sorted(place.glob("*.parquet"))
            if files:
                splits[place.name] = [read_manifest(path) for path in files]
    return splits


#: Branch on which the hub keeps a copy in Parquet of data sets that need a script.
PARQUET_BRANCH = "refs/convert/parquet"


def read_hub_dataset(config: TrainConfig) -> tuple[dict[str, list[Table]], list[str]]:
    """All splits of a hub data set, downloaded into Hugging Face's own cache.

    Raises:
        DataError: the repository, its configuration or its files cannot be had.
    """
    from datasets import load_dataset

    splits, notes = load_hub_dataset(config, load_dataset)
    return {str(name): [table_of_dataset(data, config.data)] for name, data in splits.items()}, notes


def load_hub_dataset(config: TrainConfig, load: Callable[..., Any]) -> tuple[Any, list[str]]:
    """What `load`, a function of `datasets`, makes of a hub data set, or of its copy in Parquet; and notes.

    Raises:
        DataError: the repository, its configuration or its files cannot be had.
    """
    notes: list[str] = []
    try:
        loaded = _load(load, config.data, config.data_config)
    except _hub_errors() as error:
        # Once its copy is in Hugging Face's cache, a data set with a script fails in the second way.
        if not re.search(r"scripts are no longer supported|Couldn't find cache for", str(error)):
            raise _failed(config, error) from error
        loaded = _load_parquet_copy(config, load)
        notes.append(f"{config.data} needs a loading script, so its Parquet copy ({PARQUET_BRANCH}) was used")
    return loaded, notes


def _load(load: Callable[..., Any], name: str, data_config: str | None, **options: Any) -> Any:
    from huggingface_hub.utils import logging

    # Every retry of every file would be a line of its own; a failure is told once, by who calls us.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    return load(name, data_config, **options)


def _load_parquet_copy(config: TrainConfig, load: Callable[..., Any]) -> Any:
    """The copy has one folder per configuration, and nothing that names them to `load_dataset`."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFolder

    try:
        entries = HfApi().list_repo_tree(config.data, revision=PARQUET_BRANCH, repo_type="dataset")
        names = [entry.path for entry in entries if isinstance(entry, RepoFolder)]
        chosen = config.data_config or (names[0] if len(names) == 1 else None)
        if chosen not in names:
            raise DataError(
                f"data={config.data!r}: data_config={config.data_config!r} is not one of its configurations: "
                f"{_some(names)}; set data_config"
            )
        return _load(load, config.data, None, data_dir=chosen, revision=PARQUET_BRANCH)
    except _hub_errors() as error:
        raise _failed(config, error) from error


def _hub_errors() -> tuple[type[Exception], ...]:
    """What the two libraries raise for repositories, configurations and files that are not to be had."""
    from datasets.exceptions import DatasetsError

    # OSError has the errors of the network and of the hub (also of a full disk), ValueError unknown
    # configurations.
    # RuntimeError data sets that need a script.
    return (DatasetsError, OSError, ValueError, RuntimeError)


def _failed(config: TrainConfig, error: BaseException) -> DataError:
    text = " ".join(str(error).split()) or type(error).__name__
    which = f"data={config.data!r}" + (f", data_config={config.data_config!r}" if config.data_config else "")
    return DataError(f"{which}: no such folder here, and the hub data set cannot be loaded: {text[:400]}")


def _some(names: list[str]) -> str:
    return ", ".join(names[:12]) + (f" ... ({len(names)})" if len(names) > 12 else "")

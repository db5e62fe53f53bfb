"""Where data comes from: tells the kinds of source apart and reads each, also of the hub, as tables, one per split."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, TypeAlias

from trainer.config import TrainConfig
from trainer.data.columns import some
from trainer.data.tables.subtitles import find_recordings
from trainer.data.tables.table import Table, read_manifest, read_text, table_of_dataset
from trainer.errors import DataError, one_line
from trainer.languages import language_code
from trainer.mix import MANIFEST_SUFFIXES, is_hub_name

BUCKETS = ("s3://", "gs://")
DEMO_DATA = Path(__file__).resolve().parents[1] / "demo" / "data"

#: Names under which releases publish their splits.
SPLIT_ALIASES: dict[str, tuple[str, ...]] = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev", "development", "eval"),
    "test": ("test", "testing"),
}
_VALIDATED = "validated"
"""Common Voice's table of all clips that were checked, those of its splits among them."""
Found: TypeAlias = tuple[dict[str, list[Table]], list[str]]
"""Tables by the name that the source gives the split (`""` where it gives none), and notes for the user."""


def split_role(name: str) -> str | None:
    """The part that a split of this name plays in a training (`dev` is `validation`); none for other names."""
    return next((role for role, names in SPLIT_ALIASES.items() if name.lower() in names), None)


def read_source(config: TrainConfig) -> Found:
    """All rows of `config.data`.

    Raises:
        DataError: nothing is there, or it is none of the known kinds.
    """
    try:
        path = DEMO_DATA if config.data == "demo" else Path(config.data).expanduser()
        folders = () if config.audio_dir is None else (Path(config.audio_dir).expanduser(),)
    except RuntimeError as error:
        raise DataError(
            f"data={config.data!r}: there is no such user on this machine; write the full path"
        ) from error
    try:
        tables, notes = _read_path(path, config)
    except OSError as error:  # a folder that is not the user's, a name that is too long
        reason = error.strerror or one_line(error)
        raise DataError(
            f"data={config.data!r}: cannot be read: {reason}; give a file or folder that can be read"
        ) from error
    for table in (table for group in tables.values() for table in group):
        table.audio_folders = folders
    return tables, notes


def _read_path(path: Path, config: TrainConfig) -> Found:
    if path.is_file():
        if path.suffix.lower() not in MANIFEST_SUFFIXES:
            kinds = ", ".join(MANIFEST_SUFFIXES)
            raise DataError(
                f"data={config.data!r}: {path.suffix or 'no suffix'} is not a supported kind of table; use {kinds}"
            )
        return {"": [read_manifest(path)]}, []
    if path.is_dir():
        return _read_folder(path, config)
    if is_hub_name(config.data):
        from datasets import load_dataset

        splits, notes = load_hub_dataset(config, load_dataset)
        return {str(name): [table_of_dataset(data, config.data)] for name, data in splits.items()}, notes
    if config.data.startswith(BUCKETS):
        raise DataError(
            f"data={config.data!r}: data in a bucket can only be streamed; set streaming=true, or copy it to a folder"
        )
    raise DataError(
        f"data={config.data!r}: no such file or folder; give demo, a hub data set such as google/fleurs, a "
        "table (.csv, .tsv, .jsonl, .parquet) or a folder with data"
    )


def _read_folder(folder: Path, config: TrainConfig) -> Found:
    for find in (_saved, _common_voice, _named_files, _split_folders, _kaldi, find_recordings, _only_table):
        tables = find(folder, config)
        if tables is not None:
            return tables
    if (annotations := next(iter(sorted(folder.rglob("*.eaf"))), None)) is not None:
        raise DataError(
            f"{annotations}: is a file of ELAN; export it there as subtitles (File, Export As, Subtitles Text), as "
            f"{annotations.with_suffix('.srt').name} beside the recording"
        )
    there = ", ".join(sorted(entry.name for entry in folder.iterdir())[:8]) or "nothing"
    raise DataError(
        f"data={config.data!r}: no data set in this folder; expected one table, metadata.csv, train.csv (.tsv, .jsonl, "
        ".parquet), a Common Voice release, a save_to_disk or Kaldi folder, or recordings with subtitles or texts; "
        f"found {there}"
    )


def _saved(folder: Path, config: TrainConfig) -> Found | None:
    """A folder written by `save_to_disk`."""
    if not any((folder / name).is_file() for name in ("dataset_dict.json", "state.json")):
        return None
    from datasets import DatasetDict, load_from_disk

    try:
        loaded = load_from_disk(str(folder))
    except (OSError, ValueError, KeyError) as error:
        raise DataError(
            f"data={config.data!r}: a save_to_disk folder that cannot be loaded: {one_line(error)}"
        ) from error
    splits = loaded if isinstance(loaded, DatasetDict) else {"": loaded}
    return {str(name): [table_of_dataset(data, str(folder), (folder,))] for name, data in splits.items()}, []


def _common_voice(folder: Path, config: TrainConfig) -> Found | None:
    """A release of Common Voice, or the folder of one of its languages; of spontaneous speech too."""
    folders = [folder] if _release_tables(folder) else sorted(filter(Path.is_dir, folder.iterdir()))
    releases = [each for each in folders if _release_tables(each)]
    if not releases:
        return None
    if len(releases) == 1:  # its rows say the language
        return _read_release(releases[0], config, [])
    code, names = config.language or "en", ", ".join(release.name for release in releases)
    for release in releases:
        if language_code(release.name) == code:
            return _read_release(release, config, [f"took {release.name} of the release's languages {names}"])
    raise DataError(
        f"data={config.data!r}: the release has {names}, not language={code}; set the language, or give the "
        f"folder of one language, such as {releases[0]}"
    )


def _release_tables(folder: Path) -> list[Path]:
    """The tables of one language: by split where sentences were read, one where people spoke freely."""
    if (folder / "clips").is_dir():
        return [
            path for path in sorted(folder.glob("*.tsv")) if split_role(path.stem) or path.stem == _VALIDATED
        ]
    return sorted(folder.glob("ss-corpus-*.tsv")) if (folder / "audios").is_dir() else []


def _read_release(folder: Path, config: TrainConfig, notes: list[str]) -> Found:
    if not (folder / "clips").is_dir():
        return {"": [read_manifest(path) for path in _release_tables(folder)]}, notes
    asked = {getattr(config, f"{role}_split") for role in SPLIT_ALIASES}
    tables = {
        path.stem: read_manifest(path)
        for path in sorted(folder.glob("*.tsv"))
        if split_role(path.stem) or path.stem in asked
    }
    tables = {name: table for name, table in tables.items() if len(table) or split_role(name) == "train"}
    validated = folder / f"{_VALIDATED}.tsv"
    if config.train_split == "train" and not len(tables.get("train", ())) and validated.is_file():
        tables["train"] = read_manifest(validated)
        notes = [*notes, f"no training clips in train.tsv: those of {validated.name} are taken"]
    return {name: [table] for name, table in tables.items()}, notes


def _named_files(folder: Path, config: TrainConfig) -> Found | None:
    """`metadata.csv` as of an `audiofolder`, or a manifest for each split."""
    if metadata := _manifests(folder, ["metadata"]):
        return {"": metadata["metadata"]}, []
    names = [name for aliases in SPLIT_ALIASES.values() for name in aliases]
    bases = (folder, folder / "clips")
    manifests = _manifests(folder, names) or _manifests(folder / "data", names, bases)
    return (manifests, []) if manifests else None


def _manifests(folder: Path, names: Collection[str], bases: tuple[Path, ...] = ()) -> dict[str, list[Table]]:
    """Manifests of these names, whole (`dev.csv`) or in the hub's pieces (`train-00000-of-00002.parquet`)."""
    by_name: dict[str, dict[str, list[Table]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name, suffix = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).lower(), path.suffix.lower()
        if suffix in MANIFEST_SUFFIXES and name in names:
            by_name.setdefault(name, {}).setdefault(suffix, []).append(read_manifest(path, bases=bases))
    found = {}
    for name, formats in by_name.items():
        found[name], *others = [formats[suffix] for suffix in MANIFEST_SUFFIXES if suffix in formats]
        for other in others:
            sizes = [sum(map(len, tables)) for tables in (found[name], other)]
            if sizes[0] != sizes[1]:
                first, second = (Path(tables[0].origin).name for tables in (found[name], other))
                raise DataError(
                    f"{folder}: {first} ({sizes[0]:,} rows) and {second} ({sizes[1]:,} rows) have the same name and "
                    "other rows; remove one, or put all rows into one file"
                )
    return found


def _split_folders(folder: Path, config: TrainConfig) -> Found | None:
    """Folders named by split, each with a manifest of its own, of Kaldi's kind or with Parquet files."""
    splits: dict[str, list[Table]] = {}
    for child in sorted(folder.iterdir()):
        if child.is_dir() and split_role(child.name):
            tables = _manifests(child, ["metadata"]).get("metadata")
            if tables is None and (kaldi := _kaldi(child, config)) is not None:
                tables = kaldi[0][""]
            tables = tables or [read_manifest(path) for path in sorted(child.glob("*.parquet"))]
            if tables:
                splits[child.name] = tables
    return (splits, []) if splits else None


def _kaldi(folder: Path, config: TrainConfig) -> Found | None:
    """A data directory of Kaldi: `wav.scp` and `text`, with `segments` and `utt2spk` where they are."""
    if not all((folder / name).is_file() for name in ("wav.scp", "text")):
        return None
    recordings, texts = _first_words(folder / "wav.scp"), _first_words(folder / "text")
    segments = {name: value.split() for name, value in _first_words(folder / "segments").items()}
    speakers = _first_words(folder / "utt2spk")
    names = ("id", "audio", "text", "speaker", *(("start", "end") if segments else ()))
    rows = []
    for name, text in texts.items():
        recording, *times = segments.get(name) or [name]
        file = recordings.get(recording, "")
        if not file or file.endswith("|"):
            command = "is made by a command: write the sound to files, and their paths there"
            what = (
                f"recording {recording[:80]} of utterance {name[:80]} {command if file else 'is not there'}"
            )
            raise DataError(f"{folder / 'wav.scp'}: {what}")
        if segments and len(times) != 2:
            raise DataError(
                f"{folder / 'segments'}: utterance {name[:80]}: must have a recording, a start and an end in seconds; "
                "add them, or remove it from text"
            )
        rows.append((name, file, text, speakers.get(name, ""), *times))
    columns: dict[str, list[Any]] = {name: [row[at] for row in rows] for at, name in enumerate(names)}
    return {"": [Table(str(folder / "text"), columns, bases=(folder, *folder.parents[:2]))]}, []


def _first_words(path: Path) -> dict[str, str]:
    """The first word of each line, and the rest; nothing where there is no such file."""
    if not path.is_file():
        return {}
    lines = (line.split(maxsplit=1) for line in read_text(path).split("\n") if line.strip())
    return {line[0]: line[1].strip() if len(line) > 1 else "" for line in lines}


def _only_table(folder: Path, config: TrainConfig) -> Found | None:
    """A manifest of any name, where there is but one."""
    paths = [path for path in sorted(folder.iterdir()) if path.suffix.lower() in MANIFEST_SUFFIXES]
    return ({"": [read_manifest(paths[0])]}, []) if len(paths) == 1 else None


#: Branch on which the hub keeps a copy in Parquet of data sets that need a script.
PARQUET_BRANCH = "refs/convert/parquet"


def load_hub_dataset(config: TrainConfig, load: Callable[..., Any]) -> tuple[Any, list[str]]:
    """What `load`, a function of `datasets`, makes of a hub data set, or of its copy in Parquet; and notes.

    Files are downloaded into Hugging Face's own cache.

    Raises:
        DataError: the repository, its configuration or its files cannot be had.
    """
    from datasets.exceptions import DatasetsError
    from huggingface_hub.utils import logging

    # Every retry of every file would be a line of its own; a failure is told once, by who calls us.
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    # OSError has the errors of the network and of the hub (also of a full disk), ValueError unknown configurations,
    # RuntimeError data sets that need a script.
    failures = (DatasetsError, OSError, ValueError, RuntimeError)
    try:
        try:
            return load(config.data, config.data_config), []
        except failures as error:
            # Once its copy is in Hugging Face's cache, a data set with a script fails in the second way.
            if not re.search(r"scripts are no longer supported|Couldn't find cache for", str(error)):
                raise
        copy = load(config.data, data_dir=_copied_configuration(config), revision=PARQUET_BRANCH)
    except failures as error:
        which = f", data_config={config.data_config!r}" if config.data_config else ""
        raise DataError(
            f"data={config.data!r}{which}: no such folder here, and the hub data set cannot be loaded: "
            + one_line(error, 400)
        ) from error
    return copy, [f"{config.data} needs a loading script, so its Parquet copy ({PARQUET_BRANCH}) was used"]


def _copied_configuration(config: TrainConfig) -> str:
    """The copy has one folder per configuration, and nothing that names them to `load_dataset`."""
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFolder

    entries = HfApi().list_repo_tree(config.data, revision=PARQUET_BRANCH, repo_type="dataset")
    names = [entry.path for entry in entries if isinstance(entry, RepoFolder)]
    chosen = config.data_config or (names[0] if len(names) == 1 else None)
    if chosen is None or chosen not in names:
        raise DataError(
            f"data={config.data!r}: data_config={config.data_config!r} is not one of its configurations: "
            f"{some(names)}; set data_config"
        )
    return chosen

"""Where data comes from: tells the kinds of source apart and reads each, also of the hub, as tables, one per split."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from trainer.config import TrainConfig
from trainer.data.columns import some
from trainer.data.tables.subtitles import find_recordings
from trainer.data.tables.table import MANIFEST_SUFFIXES, Table, read_manifest, read_text, table_of_dataset
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
    if config.data == "demo":
        return _read_folder(DEMO_DATA, config)
    try:
        path = Path(config.data).expanduser()
        folders = () if config.audio_dir is None else (Path(config.audio_dir).expanduser(),)
    except RuntimeError as error:
        raise DataError(f"data={config.data!r}: nobody here has this name; write the path in full") from error
    try:
        tables, notes = _read_path(path, config)
    except OSError as error:  # a folder that is not the user's, a name that is too long
        reason = (error.strerror or str(error).strip() or type(error).__name__).splitlines()[0]
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
                f"data={config.data!r}: {path.suffix or 'no suffix'} is no kind of manifest; use {kinds}"
            )
        return {"": [read_manifest(path)]}, []
    if path.is_dir():
        return _read_folder(path, config)
    if (
        re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", config.data)
        and path.suffix.lower() not in MANIFEST_SUFFIXES
    ):
        from datasets import load_dataset

        splits, notes = load_hub_dataset(config, load_dataset)
        return {str(name): [table_of_dataset(data, config.data)] for name, data in splits.items()}, notes
    if config.data.startswith(BUCKETS):
        raise DataError(
            f"data={config.data!r}: data in a bucket can only be streamed; set streaming=true, or copy it to a folder"
        )
    raise DataError(
        f"data={config.data!r}: no such file or folder; give demo, a hub data set such as google/fleurs, a "
        "manifest (.csv, .tsv, .jsonl, .parquet) or a folder with data"
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
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DataError(
            f"data={config.data!r}: a save_to_disk folder that cannot be loaded: {reason}"
        ) from error
    splits = loaded if isinstance(loaded, DatasetDict) else {"": loaded}
    return {str(name): [table_of_dataset(data, str(folder), (folder,))] for name, data in splits.items()}, []


def _common_voice(folder: Path, config: TrainConfig) -> Found | None:
    """A release of Common Voice, or the folder of one of its languages; of spontaneous speech too."""
    if _release_tables(folder):
        return _read_release(folder, config, [])
    releases = {
        entry.name: entry for entry in sorted(folder.iterdir()) if entry.is_dir() and _release_tables(entry)
    }
    if not releases:
        return None
    if len(releases) == 1:  # its rows say the language
        return _read_release(next(iter(releases.values())), config, [])
    code = config.language or "en"
    for name, release in releases.items():
        if language_code(name) == code:
            return _read_release(
                release, config, [f"took {name} of the release's languages {', '.join(releases)}"]
            )
    raise DataError(
        f"data={config.data!r}: the release has {', '.join(releases)}, not language={code}; set the "
        f"language, or give the folder of one language, such as {next(iter(releases.values()))}"
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
    """Manifests of these names, whole (`dev.csv`) or in the hub's pieces (`train-00000-of-00002.parquet`).

    Raises:
        DataError: one is there in several formats, which have not as many rows.
    """
    by_name: dict[str, dict[str, list[Table]]] = {}
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        name, suffix = re.sub(r"-\d{5}-of-\d{5}$", "", path.stem).lower(), path.suffix.lower()
        if suffix in MANIFEST_SUFFIXES and name in names:
            by_name.setdefault(name, {}).setdefault(suffix, []).append(read_manifest(path, bases=bases))
    return {name: _one_of(formats) for name, formats in by_name.items()}


def _one_of(formats: Mapping[str, Sequence[Table]]) -> list[Table]:
    """Tables of the same rows, by the suffix of their files: the first; DataError where they have not as many rows."""
    first, *others = [formats[suffix] for suffix in MANIFEST_SUFFIXES if suffix in formats]
    for other in others:
        if sum(map(len, first)) != sum(map(len, other)):
            one, two = (
                f"{Path(tables[0].origin).name} ({sum(map(len, tables)):,} rows)" for tables in (first, other)
            )
            raise DataError(
                f"{Path(other[0].origin).parent}: {one} and {two} have the same name and other rows; remove one, "
                "or put all rows into one file"
            )
    return list(first)


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
    """A data directory of Kaldi: `wav.scp` and `text`, with `segments` and `utt2spk` where they are.

    Raises:
        DataError: a recording is made by a command, or an utterance has none.
    """
    if not all((folder / name).is_file() for name in ("wav.scp", "text")):
        return None
    recordings, texts = _first_words(folder / "wav.scp"), _first_words(folder / "text")
    segments = {name: value.split() for name, value in _first_words(folder / "segments").items()}
    speakers = _first_words(folder / "utt2spk")
    columns: dict[str, list[Any]] = {name: [] for name in ("id", "audio", "text", "speaker")}
    columns |= {"start": [], "end": []} if segments else {}
    for name, text in texts.items():
        recording, *times = segments.get(name) or [name]
        file = recordings.get(recording, "")
        if not file or file.endswith("|"):
            command = "is made by a command: write the sound to files, and their paths there"
            raise DataError(
                f"{folder / 'wav.scp'}: recording {recording[:80]} of utterance {name[:80]} "
                + (command if file else "is not there")
            )
        if segments and len(times) != 2:
            raise DataError(
                f"{folder / 'segments'}: utterance {name[:80]}: must have a recording, a start and an end in seconds; "
                "add them, or remove it from text"
            )
        cells = (name, file, text, speakers.get(name, ""), *times)
        for values, cell in zip(columns.values(), cells, strict=True):
            values.append(cell)
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
        text = " ".join(str(error).split()) or type(error).__name__
        which = f", data_config={config.data_config!r}" if config.data_config else ""
        raise DataError(
            f"data={config.data!r}{which}: no such folder here, and the hub data set cannot be loaded: {text[:400]}"
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

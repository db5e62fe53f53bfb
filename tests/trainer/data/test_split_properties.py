"""Whatever table of clips, texts, speakers, files and split values: what must hold of the splits."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from make_data import write_manifest

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable, load_clips
from trainer.data.kept_splits import encode_splits
from trainer.data.text import has_words
from trainer.errors import DataError

Row = dict[str, str]
SPLITS = ("train", "Train", "dev", "VALIDATION", "test", "extra", "")
#: Few different values, so that rows share them in every way.
TEXTS = st.one_of(
    st.sampled_from(["yes", "Yes!", "no", "...", ""]), st.integers(0, 40).map(lambda n: f"sentence {n}")
)
FILES = st.integers(0, 60).map(lambda number: f"{number}.wav")
SPEAKERS = st.sampled_from(["", *(f"voice {number}" for number in range(12))])
COLUMN_NAMES = {"audio": FILES, "text": TEXTS, "speaker_id": SPEAKERS, "Split": st.sampled_from(SPLITS)}


@st.composite
def tables(draw: st.DrawFn) -> list[Row]:
    """Rows with or without speakers and splits."""
    left_out = draw(st.sets(st.sampled_from(["speaker_id", "Split"])))
    columns = {name: values for name, values in COLUMN_NAMES.items() if name not in left_out}
    return draw(st.lists(st.fixed_dictionaries(columns), min_size=2, max_size=80))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all files that rows may name."""
    folder = tmp_path_factory.mktemp("place")
    for number in range(61):
        (folder / f"{number}.wav").touch()
    return folder


def load(place: Path, rows: list[Row], **settings: Any) -> ClipTable | None:
    """None where the data is refused, which must be with one line that names it."""
    path = write_manifest(place / "x.csv", rows)
    try:
        return load_clips(TrainConfig.from_dict({"data": str(path), **settings}))
    except DataError as error:
        assert "\n" not in str(error)
        assert f"data={str(path)!r}" in str(error)
        return None


def used(rows: list[Row]) -> Counter[tuple[str, str]]:
    """File and text of the rows that are in splits of usual names, or all where there are none."""
    if not any(row.get("Split") for row in rows):
        return Counter((row["audio"], row["text"]) for row in rows)
    usual = [row for row in rows if row["Split"].lower() in ("train", "dev", "validation", "test")]
    # Of two usual names of one split, the data's first choice is used; the other is told as not used.
    names = {row["Split"].lower() for row in usual}
    second = {"dev"} if {"dev", "validation"} <= names else set()
    return Counter((row["audio"], row["text"]) for row in usual if row["Split"].lower() not in second)


def found(table: ClipTable) -> dict[str, list[tuple[str, str]]]:
    return {role: sorted((clip.name, clip.text) for clip in clips) for role, clips in table.splits.items()}


def shared(splits: Mapping[str, list[Clip]], what: Any) -> set[str]:
    counts = Counter(value for clips in splits.values() for value in {what(clip) for clip in clips})
    return {value for value, count in counts.items() if value and count > 1}


@given(rows=tables())
def test_no_clip_is_lost_or_in_two_splits(place: Path, rows: list[Row]) -> None:
    table = load(place, rows)
    assume(table is not None)
    assert sum(len(clips) for clips in table.splits.values()) + len(table.drops) == sum(used(rows).values())
    in_splits = Counter((clip.name, clip.text) for clips in table.splits.values() for clip in clips)
    assert in_splits <= used(rows)
    left_out = Counter(drop.name for drop in table.drops)
    assert left_out + Counter(name for name, _ in in_splits.elements()) == Counter(
        name for name, _ in used(rows).elements()
    )
    assert all(has_words(clip.text) for clips in table.splits.values() for clip in clips)
    assert not shared(table.splits, lambda clip: clip.path), "no file is in two splits"


@given(rows=tables(), seed=st.integers(0, 3), data=st.data())
def test_the_order_of_rows_does_not_matter(
    place: Path, rows: list[Row], seed: int, data: st.DataObject
) -> None:
    other = data.draw(st.permutations(rows))
    first, second = (load(place, one, data_seed=seed) for one in (rows, other))
    assert (first is None) == (second is None)
    if first is not None and second is not None:
        assert found(first) == found(second)


@given(
    rows=tables(),
    more=st.lists(st.tuples(FILES, TEXTS, SPEAKERS, st.sampled_from(SPLITS)), max_size=40),
    seed=st.integers(0, 3),
)
def test_rows_that_are_added_move_no_clip_of_kept_splits(
    place: Path, rows: list[Row], more: list[tuple[str, str, str, str]], seed: int
) -> None:
    before = load(place, rows)
    assume(before is not None)
    kept = place / "splits.parquet"
    kept.write_bytes(encode_splits(before.whole, {}))
    values = [dict(zip(("audio", "text", "speaker_id", "Split"), one, strict=True)) for one in more]
    added = [{name: row[name] for name in rows[0]} for row in values]
    after = load(place, [*added, *rows], data_seed=seed, splits=str(kept))
    known = {(name, text) for pairs in found(before).values() for name, text in pairs}
    for role, pairs in found(before).items():
        # Every clip is where it was; rows that are the same as kept ones, but new, are with these.
        assert {pair for pair in found(after)[role] if pair in known} == set(pairs)
    learned = {clip.name for clip in before.splits["train"]}
    for role in ("validation", "test"):
        assert not {clip.name for clip in after.splits.get(role, ())} & learned
    assert not shared(after.splits, lambda clip: clip.path)

"""`inspect_data(config)`: a whole data set looked at, before anything is spent on it, and what is then known of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from trainer.config import TrainConfig
from trainer.data.clip import Clip
from trainer.data.clips import load_clips
from trainer.data.drops import Drop
from trainer.data.parallel import over_clips
from trainer.data.prepared import PreparedSplit
from trainer.data.splits import subset
from trainer.inspection.checks import (
    find_copies,
    find_dropped,
    find_in_sound,
    find_in_texts,
    find_misfitting,
    find_shared_texts,
    find_small_splits,
    odd_entries,
    shared_speaker_notes,
    speakers_of,
)
from trainer.inspection.entries import (
    Entry,
    Groups,
    Limits,
    find_left_out,
    find_limits,
    make_entries,
    measured_clips,
    speech,
)
from trainer.inspection.findings import Finding, make_finding, ranked
from trainer.inspection.rates import misfitting
from trainer.inspection.sound import listen
from trainer.inspection.texts import grouped

#: Called with what is being done, how many are done and how many there are.
Progress = Callable[[str, int, int], None]

_SMALL = 300
"""Clips that are listened to in this process alone."""
_FAR = 2.0
"""Times longer or shorter than usual in a quick look, whose lengths are with the silence around, which differs."""


@dataclasses.dataclass(frozen=True)
class SplitFacts:
    clips: int
    seconds: float
    """Of the clips that were listened to and can be used; of a sample, what that comes to for all."""
    words: int
    different_texts: int
    """But for case and punctuation."""
    speakers: int | None
    """None where the data does not say who speaks."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    config: TrainConfig
    limits: Limits
    entries: list[Entry]
    splits: dict[str, SplitFacts]
    languages: dict[str, int]
    """Clips by the code of their language, as far as the data says."""
    notes: list[str]
    measured: int
    """Clips that were listened to."""
    drops: list[Drop]
    stops: str | None
    """The error that a search would stop with: too much is dropped, or a split has nothing left."""
    rates: dict[str, float]
    """Letters a second that are usual, by the code of the language."""
    findings: list[Finding]
    """The worst first."""


def inspect_data(
    config: TrainConfig,
    *,
    with_model: bool = True,
    sample: int | None = None,
    on_progress: Progress = lambda what, done, total: None,
) -> Inspection:
    """Look at the data of `config`: all its texts, and its audio or a sample of it.

    Args:
        config: its data, model and text settings count.
        with_model: whether `config.model` says what is too long; else Whisper's usual limits do, and tokens are not
            counted.
        sample: listen to so many clips only, chosen by `data_seed`, of each split its share.

    Raises:
        DataError: the data cannot be found or read, or a split is empty.
        ModelError: the model cannot be found.
    """
    limits = find_limits(config) if with_model else Limits()
    table = load_clips(config, window=limits.window, refuse_tokens=False)
    entries = make_entries(config, table)
    by_split = grouped(entries, lambda entry: entry.split)
    chosen = _sampled(by_split, sample, config.data_seed)
    sounds = over_clips(
        listen,
        [entry.clip for entry in chosen],
        max_seconds=limits.window,
        doing="listens to clips",
        small=_SMALL,
    )
    for done, (entry, sound) in enumerate(zip(chosen, sounds, strict=True), start=1):
        entry.sound = sound
        on_progress("listening", done, len(chosen))
    drops, stops = find_left_out(config, table, by_split, limits, whole=len(chosen) == len(entries))
    groups = grouped(entries, lambda entry: entry.language)
    rates, misfits = find_misfitting(groups)
    findings = [
        *find_dropped(drops, stops, table.total + len(table.drops)),
        *find_in_sound(entries),
        *find_copies(entries),
        *find_shared_texts(entries),
        *misfits,
        *find_in_texts(groups, functools.partial(on_progress, "reading")),
        *find_small_splits(entries),
    ]
    speakers = speakers_of(by_split)
    notes = [*table.notes, *shared_speaker_notes(speakers)]
    if len(chosen) < len(entries):
        notes.append(f"listened to {len(chosen):,} of {table.total:,} clips; all texts were read")
    return Inspection(
        config=config,
        limits=limits,
        entries=entries,
        splits={split: _facts(mine, len(speakers[split])) for split, mine in by_split.items()},
        languages={code: len(mine) for code, mine in groups.items()},
        notes=notes,
        measured=len(chosen),
        drops=drops,
        stops=stops,
        rates=rates,
        findings=ranked(findings),
    )


def _sampled(by_split: Groups, sample: int | None, seed: int) -> list[Entry]:
    """The clips to listen to: all, or of each split its share of the sample, at least one."""
    total = sum(map(len, by_split.values()))
    if sample is None or sample >= total:
        return [entry for mine in by_split.values() for entry in mine]
    shares = {split: max(1, sample * len(mine) // total) for split, mine in by_split.items()}
    shares["train"] = max(1, sample - sum(share for split, share in shares.items() if split != "train"))
    return [
        mine[at]
        for split, mine in by_split.items()
        for at in subset([entry.clip for entry in mine], min(len(mine), shares[split]), seed)
    ]


def _facts(entries: Sequence[Entry], speakers: int) -> SplitFacts:
    listened = sum(entry.sound is not None for entry in entries)
    return SplitFacts(
        clips=len(entries),
        seconds=sum(sound.seconds for _, sound in measured_clips(entries)) * len(entries) / max(1, listened),
        words=sum(len(entry.text.split()) for entry in entries),
        different_texts=len({entry.key for entry in entries}),
        speakers=speakers or None,
    )


SHARES = {"least": 0.0, "p05": 0.05, "median": 0.5, "p95": 0.95, "most": 1.0}
"""What is told of a measure: the value that such a share of the clips do not exceed."""


def quantiles(entries: Sequence[Entry]) -> dict[str, dict[str, float]]:
    """How each measure spreads over the clips that it is known of: the values of `SHARES`, by its name."""
    every = [sound for _, sound in measured_clips(entries)]
    spoken = [(entry.units, sound.spoken) for entry, sound in speech(entries) if sound.spoken > 0.2]
    measures: dict[str, Iterable[float]] = {
        "seconds": (sound.seconds for sound in every),
        "tokens": (float(entry.tokens) for entry in entries if entry.tokens),
        "letters_per_second": (units / seconds for units, seconds in spoken),
        "level_dbfs": (sound.loud for sound in every),
        "silence_at_the_ends": (sound.lead + sound.tail for sound in every),
    }
    spread = {}
    for name, values in measures.items():
        if ordered := sorted(values):
            last = len(ordered) - 1
            spread[name] = {
                quantile: ordered[min(last, int(share * len(ordered)))] for quantile, share in SHARES.items()
            }
    return spread


def quick_look(config: TrainConfig, splits: Mapping[str, PreparedSplit]) -> list[Finding]:
    """What a search says of its data before it spends anything: texts and lengths, without reading audio.

    It takes a few seconds for 100,000 clips.
    """
    clips = []
    for split, prepared in splits.items():
        languages = {origin: origin.config(config).written_language for origin in prepared.origins.kinds}
        for i in range(len(prepared)):
            clip = Clip(prepared.name(i), prepared.text(i))
            clips.append((Entry(split, clip, languages[prepared.origins[i]]), prepared.seconds(i)))
    entries = [entry for entry, _ in clips]
    by_language = grouped(clips, lambda each: each[0].language).values()
    misfits = [found for own in by_language for found in misfitting(own, ratio=_FAR)[1]]
    odd = [found for own in by_language for found in odd_entries([entry for entry, _ in own])]
    return ranked(
        [
            *find_shared_texts(entries),
            *make_finding("text_misfit", misfits),
            *make_finding("odd_characters", odd),
            *find_small_splits(entries),
        ]
    )

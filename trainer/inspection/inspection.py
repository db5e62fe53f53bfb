"""`inspect_data(config)`: a whole data set looked at, before anything is spent on it, and what is then known of it."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Sequence

from trainer.config import TrainConfig
from trainer.data.clips import ClipTable, load_clips
from trainer.data.parallel import over_clips
from trainer.data.sources import read_source
from trainer.data.splits import subset
from trainer.inspection.audio_findings import find_copies, find_in_copies, find_in_sound
from trainer.inspection.entries import (
    Entry,
    LeftOut,
    Limits,
    find_dropped,
    find_left_out,
    find_limits,
    keep_all_languages,
    make_entries,
)
from trainer.inspection.findings import Finding, ranked
from trainer.inspection.rates import Misfit, RateModel, find_misfits
from trainer.inspection.sound import is_silent, listen
from trainer.inspection.text_findings import (
    Groups,
    find_in_texts,
    find_misfitting,
    find_shared_speakers,
    find_shared_texts,
    find_small_splits,
)
from trainer.inspection.texts import grouped
from trainer.languages import language_code
from trainer.mix import is_mix

#: Called with what is being done, how many are done and how many there are.
Progress = Callable[[str, int, int], None]

_SMALL = 300
"""Clips that are listened to in this process alone."""


@dataclasses.dataclass(frozen=True)
class SplitFacts:
    """What there is of one split."""

    clips: int
    seconds: float
    """Of the clips that were listened to; of a sample, what that comes to for all."""
    words: int
    texts: int
    """Different texts, but for case and punctuation."""
    speakers: int | None
    """None where the data does not say who speaks."""


@dataclasses.dataclass(frozen=True)
class Inspection:
    """All that was found out about a data set."""

    config: TrainConfig
    """The settings that it was loaded with."""
    limits: Limits
    entries: list[Entry]
    splits: dict[str, SplitFacts]
    languages: dict[str, int]
    """Clips by the code of their language, as far as the data says."""
    notes: list[str]
    """Sentences about what was chosen, filtered or made."""
    measured: int
    """Clips that were listened to."""
    left_out: LeftOut
    rates: dict[str, RateModel]
    """What is usual, by the code of the language."""
    findings: list[Finding]
    """The worst first."""

    @property
    def warnings(self) -> list[Finding]:
        """Findings that are most likely faults."""
        return [finding for finding in self.findings if finding.level == "warning"]

    def code_of(self, entry: Entry) -> str:
        """The code of a clip's language, as far as the data says."""
        return _text_language(self.config, entry.language)


def inspect_data(
    config: TrainConfig,
    *,
    with_model: bool = True,
    all_languages: bool = False,
    sample: int | None = None,
    on_progress: Progress | None = None,
    workers: int | None = None,
) -> Inspection:
    """Look at the data of `config`: all its texts, and its audio or a sample of it.

    Args:
        config: its data, model and text settings count.
        with_model: whether `config.model` says what is too long; else Whisper's usual limits do, and tokens are not
            counted.
        all_languages: take the clips of all languages of the data, not only those of `config.language`.
        sample: listen to so many clips only, chosen by `data_seed`, of each split its share.
        on_progress: called now and then.
        workers: processes that listen; by default one for each core.

    Raises:
        DataError: the data cannot be found or read, or a split is empty.
        ModelError: the model cannot be found.
    """
    tell = on_progress or (lambda *_: None)
    if all_languages and not is_mix(config.data):
        config = keep_all_languages(config, read_source(config)[0])
    limits = find_limits(config, with_model=with_model)
    table = load_clips(config, window=limits.window)
    entries = make_entries(table)
    chosen = _sampled(entries, sample, config.data_seed)
    sounds = over_clips(
        functools.partial(listen, max_samples=limits.max_samples),
        [entry.clip for entry in chosen],
        max_seconds=limits.window,
        doing="listens to clips",
        workers=workers,
        small=_SMALL,
    )
    for done, (entry, sound) in enumerate(zip(chosen, sounds, strict=True), start=1):
        entry.sound = sound
        tell("listening", done, len(chosen))
    left_out = find_left_out(config, table, entries, limits, whole=len(chosen) == len(entries))
    code_of = functools.cache(functools.partial(_text_language, config))
    groups = grouped(entries, lambda entry: code_of(entry.language))
    rates, misfits = _misfits(groups)
    findings = [
        *find_dropped(left_out, table.total + len(table.drops)),
        *find_in_sound(entries),
        *find_in_copies(find_copies(entries)),
        *find_shared_texts(entries),
        *find_misfitting(misfits, rates),
        *find_in_texts(entries, groups, functools.partial(tell, "reading")),
        *find_small_splits(entries),
        *find_shared_speakers(entries),
    ]
    return Inspection(
        config=config,
        limits=limits,
        entries=entries,
        splits=_split_facts(entries),
        languages={code: len(mine) for code, mine in groups.items()},
        notes=_notes(table, len(chosen)),
        measured=len(chosen),
        left_out=left_out,
        rates=rates,
        findings=ranked(findings),
    )


def _text_language(config: TrainConfig, told: str) -> str:
    """The code of the language that a text is in.

    Args:
        config: its language counts where the data tells none, or none that Whisper knows.
        told: what the data has in its column.
    """
    if config.task == "translate":
        return "en"
    return language_code(told) or config.language or "en"


def _notes(table: ClipTable, listened: int) -> list[str]:
    some = f"listened to {listened:,} of {table.total:,} clips; all texts were read"
    return [*table.notes, some] if listened < table.total else list(table.notes)


def _sampled(entries: Sequence[Entry], sample: int | None, seed: int) -> list[Entry]:
    """The clips to listen to: all, or of each split its share of the sample, at least one."""
    if sample is None or sample >= len(entries):
        return list(entries)
    by_split = grouped(entries, lambda entry: entry.split)
    shares = {split: max(1, sample * len(mine) // len(entries)) for split, mine in by_split.items()}
    shares["train"] = max(1, sample - sum(share for split, share in shares.items() if split != "train"))
    return [
        entry
        for split, mine in by_split.items()
        for entry in subset(mine, min(len(mine), shares[split]), seed)
    ]


def _misfits(groups: Groups) -> tuple[dict[str, RateModel], list[tuple[Entry, float, Misfit]]]:
    """What is usual in each language, and the clips whose texts are far too long or short for them."""
    rates, found = {}, []
    for code, entries in groups.items():
        spoken = [
            (entry, sound.spoken)
            for entry in entries
            if (sound := entry.heard) is not None and not is_silent(sound)
        ]
        model, misfits = find_misfits([seconds for _, seconds in spoken], [e.units for e, _ in spoken])
        found += [(*spoken[misfit.position], misfit) for misfit in misfits]
        if model is not None:
            rates[code] = model
    return rates, found


def _split_facts(entries: Sequence[Entry]) -> dict[str, SplitFacts]:
    """What there is of each split."""
    facts = {}
    for split, mine in grouped(entries, lambda entry: entry.split).items():
        known = [entry.sound.seconds for entry in mine if entry.sound is not None and entry.sound.seconds]
        heard = sum(entry.sound is not None for entry in mine)
        facts[split] = SplitFacts(
            clips=len(mine),
            seconds=sum(known) * len(mine) / heard if heard else 0.0,
            words=sum(len(entry.text.split()) for entry in mine),
            texts=len({entry.key for entry in mine}),
            speakers=len({entry.speaker for entry in mine if entry.speaker}) or None,
        )
    return facts


@dataclasses.dataclass(frozen=True)
class Distribution:
    """How one measure spreads over the clips."""

    key: str
    """For programs: `seconds`."""
    title: str
    """For people: `duration, s`."""
    values: list[float]
    """In rising order."""

    def quantile(self, share: float) -> float:
        """The value that `share` of the clips do not exceed."""
        return self.values[min(len(self.values) - 1, int(share * len(self.values)))]


def distributions(entries: Sequence[Entry]) -> list[Distribution]:
    """Duration, tokens, speaking rate, level and silence, each of the clips that it is known of."""
    heard = [(entry, sound) for entry in entries if (sound := entry.heard) is not None]
    spoken = [(entry, sound) for entry, sound in heard if sound.spoken > 0.2 and not is_silent(sound)]
    known = [entry.sound.seconds for entry in entries if entry.sound is not None and entry.sound.seconds]
    measures: list[tuple[str, str, Iterable[float]]] = [
        ("seconds", "duration, s", known),
        ("tokens", "tokens of the text", (float(entry.tokens) for entry in entries if entry.tokens)),
        ("letters_per_second", "letters a second of speech", [e.units / s.spoken for e, s in spoken]),
        ("level", "level of the loud parts, dBFS", [sound.loud for _, sound in heard]),
        ("silence", "silence at the ends, s", [sound.lead + sound.tail for _, sound in heard]),
    ]
    every = [Distribution(key, title, sorted(values)) for key, title, values in measures]
    return [one for one in every if one.values]

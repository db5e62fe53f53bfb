"""`inspect_data(config)`: a whole data set looked at, before anything is spent on it."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence

from trainer.config import TrainConfig
from trainer.data import ClipTable, load_clips
from trainer.inspection.characters import alphabet
from trainer.inspection.copies import MOST_PAIRS, find_copies, find_in_copies
from trainer.inspection.entries import Entry, keep_all_languages, make_entries
from trainer.inspection.findings import Finding, names_of
from trainer.inspection.inspection import Inspection, ranked, split_facts, text_language
from trainer.inspection.limits import find_dropped, find_left_out, find_limits
from trainer.inspection.listening import listen_to
from trainer.inspection.rates import Misfit, RateModel, find_misfits
from trainer.inspection.sound_findings import find_in_sound, is_silent
from trainer.inspection.split_findings import (
    find_repeated_texts,
    find_shared_speakers,
    find_shared_texts,
    find_small_splits,
)
from trainer.inspection.text_findings import (
    find_digits,
    find_misfitting,
    find_no_transcripts,
    find_odd_characters,
    find_other_languages,
)
from trainer.sources import read_source
from trainer.splits import subset

#: Called with what is being done, how many are done and how many there are.
Progress = Callable[[str, int, int], None]


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
    tell = on_progress or _silently
    tables, _ = read_source(config)
    if all_languages:
        config = keep_all_languages(config, tables)
    table = load_clips(config)
    limits = find_limits(config, with_model=with_model)
    entries = make_entries(table)
    chosen = _sampled(entries, sample, config.data_seed)
    begun = time.monotonic()
    sounds = listen_to([entry.clip for entry in chosen], max_samples=limits.max_samples, workers=workers)
    for done, (entry, sound) in enumerate(zip(chosen, sounds, strict=True), start=1):
        entry.sound = sound
        tell("listening", done, len(chosen))
    took = time.monotonic() - begun
    left_out = find_left_out(config, table, entries, limits, whole=len(chosen) == len(entries))
    groups = _by_language(config, entries)
    rates, misfits = _misfits(groups)
    in_copies, copies, uncompared = _compare(entries, tell)
    findings = [
        *find_dropped(left_out, table.total + len(table.drops)),
        *find_in_sound(entries),
        *in_copies,
        *find_shared_texts(entries),
        *find_repeated_texts(entries, copies),
        *find_misfitting(misfits, rates),
        *_read(entries, groups, tell),
        *find_small_splits(entries),
        *find_shared_speakers(entries),
    ]
    return Inspection(
        config=config,
        limits=limits,
        entries=entries,
        splits=split_facts(entries),
        languages={code: len(mine) for code, mine in groups.items()},
        notes=_notes(table, len(chosen), uncompared),
        measured=len(chosen),
        listening_seconds=took,
        left_out=left_out,
        alphabet=alphabet(entry.text for entry in entries),
        rates=rates,
        findings=ranked(findings),
    )


def _silently(what: str, done: int, total: int) -> None:
    """Progress that nobody looks at."""


def _compare(entries: Sequence[Entry], tell: Progress) -> tuple[list[Finding], list[list[int]], int]:
    """What there is to say about copies, where they are, and how many pairs were not compared."""
    copies, how, uncompared = find_copies(entries, functools.partial(tell, "comparing"))
    return find_in_copies(entries, copies, how), copies, uncompared


def _read(entries: Sequence[Entry], groups: Mapping[str, Sequence[Entry]], tell: Progress) -> list[Finding]:
    """What there is to say about the texts as such; what is told of one is not told again in other words."""
    missing = find_no_transcripts(entries)
    foreign = find_other_languages(
        groups, skip=names_of(missing), on_progress=functools.partial(tell, "reading")
    )
    odd = find_odd_characters(groups, skip=names_of(foreign), skip_rare=names_of(missing))
    return [*missing, *foreign, *odd, *find_digits(entries)]


def _notes(table: ClipTable, listened: int, uncompared: int) -> list[str]:
    notes = list(table.notes)
    if listened < table.total:
        notes.append(f"listened to {listened:,} of {table.total:,} clips; all texts were read")
    if uncompared:
        notes.append(
            f"{uncompared:,} pairs of clips sound alike beyond the {MOST_PAIRS:,} that were compared: more of them may "
            "be copies"
        )
    return notes


def _sampled(entries: Sequence[Entry], sample: int | None, seed: int) -> list[Entry]:
    """The clips to listen to: all, or of each split its share of the sample, at least one."""
    if sample is None or sample >= len(entries):
        return list(entries)
    by_split: dict[str, list[Entry]] = {}
    for entry in entries:
        by_split.setdefault(entry.split, []).append(entry)
    shares = {split: max(1, sample * len(mine) // len(entries)) for split, mine in by_split.items()}
    shares["train"] = max(1, sample - sum(share for split, share in shares.items() if split != "train"))
    return [
        entry
        for split, mine in by_split.items()
        for entry in subset(mine, min(len(mine), shares[split]), seed)
    ]


def _by_language(config: TrainConfig, entries: Sequence[Entry]) -> dict[str, list[Entry]]:
    """Clips by the code of the language that their texts are in."""
    codes: dict[str, str] = {}
    groups: dict[str, list[Entry]] = {}
    for entry in entries:
        if entry.language not in codes:
            codes[entry.language] = text_language(config, entry.language)
        groups.setdefault(codes[entry.language], []).append(entry)
    return groups


def _misfits(
    groups: Mapping[str, Sequence[Entry]],
) -> tuple[dict[str, RateModel], list[tuple[Entry, float, Misfit]]]:
    """What is usual in each language, and the clips whose texts are far too long or short for them."""
    rates, found = {}, []
    for code, entries in groups.items():
        told = [(entry, entry.heard) for entry in entries]
        spoken = [
            (entry, sound.spoken) for entry, sound in told if sound is not None and not is_silent(sound)
        ]
        model, misfits = find_misfits([seconds for _, seconds in spoken], [e.units for e, _ in spoken])
        found += [(*spoken[misfit.position], misfit) for misfit in misfits]
        if model is not None:
            rates[code] = model
    return rates, found

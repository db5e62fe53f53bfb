"""A data set as a page: what looks wrong and what to do, then what there is."""

from __future__ import annotations

import datetime
from collections.abc import Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING

from trainer.inspection.inspection import Distribution, distributions
from tune.display import clock
from tune.inspection.tables import format_name, headline, limits_text, long_time, short_number
from tune.pages.inspection_pictures import durations_picture, histogram_picture, rates_picture
from tune.pages.page import (
    Cell,
    Column,
    Html,
    box,
    bullets,
    folded,
    gallery,
    heading,
    paragraph,
    picture,
    render_page,
    table,
    tiles,
)

if TYPE_CHECKING:
    from trainer.inspection.characters import Character
    from trainer.inspection.findings import Finding, Suspect
    from trainer.inspection.inspection import Inspection

_OPEN, _MOST = 6, 300
"""Clips of a finding that are seen at once, and that are on the page at all."""
_SMALL = ("tokens", "letters_per_second", "level", "silence")
_MISFITS = ("text_too_long", "text_too_short")


def inspection_page(inspection: Inspection) -> str:
    """The page, whole."""
    found = distributions(inspection.entries)
    name = inspection.config.data.rstrip("/").rsplit("/", 1)[-1] or inspection.config.data
    parts = [
        tiles(_tiles(inspection)),
        bullets([note.removeprefix("WARNING: ") for note in inspection.notes]),
        *_findings(inspection),
        *_what_there_is(inspection, found),
        *_alphabet(inspection.alphabet),
        heading("How this was found"),
        *map(paragraph, _METHOD),
    ]
    today = datetime.datetime.now().astimezone().isoformat(timespec="seconds")
    return render_page(
        f"{name}: what is in the data", headline(inspection), parts, f"tune-whisper inspect, {today}"
    )


def _tiles(inspection: Inspection) -> list[tuple[str, str]]:
    seconds = sum(facts.seconds for facts in inspection.splits.values())
    length, unit = long_time(seconds).split(" ")
    found = [
        (f"{len(inspection.warnings)}", "warning" if len(inspection.warnings) == 1 else "warnings"),
        (f"{len(inspection.entries):,}", "clips"),
        (length, unit),
        (f"{sum(facts.words for facts in inspection.splits.values()):,}", "words"),
    ]
    speakers = {entry.speaker for entry in inspection.entries if entry.speaker}
    if speakers:
        found.append((f"{len(speakers):,}", "speakers"))
    return found


def _findings(inspection: Inspection) -> Iterator[str]:
    warnings = inspection.warnings
    yield heading("What looks wrong")
    if not warnings:
        yield paragraph("Nothing in this data looks wrong.", "good")
    for finding in warnings:
        yield _finding(finding, warn=True)
    notes = [finding for finding in inspection.findings if finding.level == "note"]
    if notes:
        yield heading("Worth knowing")
        for finding in notes:
            yield _finding(finding, warn=False)


def _finding(finding: Finding, *, warn: bool) -> str:
    title = finding.title[:1].upper() + finding.title[1:]
    inside = paragraph(
        Html(f"<b>{escape(title)}.</b> {escape(finding.advice[:1].upper() + finding.advice[1:])}.")
    )
    if finding.suspects:
        inside += _suspects(finding.suspects[:_OPEN])
    rest = finding.suspects[_OPEN:_MOST]
    if rest:
        inside += folded(f"{finding.count - _OPEN:,} more", _suspects(rest) + _cut(finding.count))
    return box(inside, warn=warn)


def _suspects(suspects: Sequence[Suspect]) -> str:
    rows: list[list[Cell]] = [
        [Html(f'{escape(one.name)} <span class="muted">{escape(one.split)}</span>'), one.detail]
        for one in suspects
    ]
    return table([Column("file"), Column("what")], rows)


def _cut(count: int) -> str:
    if count <= _MOST:
        return ""
    return paragraph(
        f"The first {_MOST} of {count:,}; suspicious.csv and inspection.json have all of them.", "muted"
    )


def _what_there_is(inspection: Inspection, found: Sequence[Distribution]) -> Iterator[str]:
    yield heading("What there is")
    yield _splits(inspection)
    by_key = {one.key: one for one in found}
    if "seconds" in by_key:
        yield picture(durations_picture(inspection, by_key["seconds"]), wide=True)
    flagged = {
        (one.split, one.name): one.detail
        for finding in inspection.findings
        if finding.kind in _MISFITS
        for one in finding.suspects
    }
    rates = rates_picture(inspection, flagged)
    if rates is not None:
        yield picture(rates, wide=True)
    yield gallery([picture(histogram_picture(by_key[key])) for key in _SMALL if key in by_key])
    yield _quantiles(found)
    rows: list[list[Cell]] = [
        [format_name(rate, channels, kind), f"{count:,}"]
        for (rate, channels, kind), count in inspection.formats().most_common()
    ]
    if rows:
        yield heading("Formats", 3)
        yield table([Column("format"), Column("clips", number=True)], rows)
    yield paragraph(f"Limits: {limits_text(inspection)}.", "muted")


def _splits(inspection: Inspection) -> str:
    speakers = any(facts.speakers for facts in inspection.splits.values())
    names = ["clips", "time", "words", "different texts", *(["speakers"] if speakers else [])]
    rows: list[list[Cell]] = []
    for split, facts in inspection.splits.items():
        cells = [f"{facts.clips:,}", clock(facts.seconds), f"{facts.words:,}", f"{facts.texts:,}"]
        rows.append([split, *cells, *([f"{facts.speakers or 0:,}"] if speakers else [])])
    return table([Column("split"), *(Column(name, number=True) for name in names)], rows)


def _quantiles(found: Sequence[Distribution]) -> str:
    shares = (("least", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("most", 1.0))
    rows: list[list[Cell]] = [
        [
            f"{one.label}{', ' + one.unit if one.unit else ''}",
            *(short_number(one.quantile(share)) for _, share in shares),
        ]
        for one in found
    ]
    return table([Column("per clip"), *(Column(name, number=True) for name, _ in shares)], rows)


def _alphabet(alphabet: Sequence[Character]) -> Iterator[str]:
    yield heading("Alphabet")
    groups: dict[str, list[Character]] = {}
    for one in alphabet:
        group = one.odd or one.script or ("digits" if one.char.isdigit() else "signs")
        groups.setdefault(group, []).append(one)
    rows: list[list[Cell]] = [
        [name, f"{len(chars):,}", " ".join(_shown(one) for one in chars[:_MOST])]
        for name, chars in groups.items()
    ]
    yield table([Column(""), Column("different", number=True), Column("the most frequent first")], rows)
    rare = sorted((one for one in alphabet if one.texts <= 3), key=lambda one: (one.odd is None, one.texts))
    if rare:
        inside: list[list[Cell]] = [
            [_shown(one), one.code, one.name, f"{one.count:,}", f"{one.texts:,}"] for one in rare[:_MOST]
        ]
        columns = [Column("character"), Column("code"), Column("name")]
        yield folded(
            f"{len(rare):,} characters that are in three texts or fewer",
            table([*columns, Column("times", number=True), Column("texts", number=True)], inside),
        )


def _shown(one: Character) -> str:
    if not one.char.isprintable():
        return one.code
    # A combining mark needs something to stand on.
    return f"◌{one.char}" if one.name.startswith("COMBINING") else one.char


_METHOD = (
    "Clips that a search would leave out were found by the code of the search. Audio was measured at its own rate and "
    "at Whisper's 16 kHz: the level of frames of 20 ms, samples cut off at full scale, silence 20 to 35 dB below the "
    "loud parts. Copies are files, or samples, with the same checksum.",
    "Texts are compared without case and punctuation. A text is too long or too short for its audio where the clip is "
    "4.5 robust standard deviations from what its letters usually take in this data. Languages were told by "
    "py3langid, and only where another one is far likelier. None of this is proof: listen before removing anything.",
)

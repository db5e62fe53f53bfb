"""Before and after: what the base model and the best one wrote for a few validation clips, with their sound."""

from __future__ import annotations

import base64
import dataclasses
import io
from collections.abc import Collection, Sequence
from pathlib import Path

from trainer.errors import UserError
from trainer.mix import is_mix
from trainer.scoring.alignment import Piece, align
from trainer.scoring.normalizers import make_normalizer
from trainer.scoring.translation import TRANSLATE
from tune.experiments.results import baseline_clips
from tune.report.analysis import Analysis


@dataclasses.dataclass(frozen=True)
class Example:
    name: str
    reference: str
    """As the data has it."""
    models: Sequence[tuple[str, Sequence[Piece]]]
    """What each model wrote, aligned with the reference as words are counted; the base model first."""
    sound: str
    """An address that holds an MP3; empty where the audio is not to be had here, or not wanted."""


def find_examples(analysis: Analysis) -> list[Example]:
    """The clips whose transcripts were kept with the checkpoint; none where they, or the base model's, were not."""
    best, base = analysis.state.best(), baseline_clips(analysis.folder.path)
    kept = [texts for clips in analysis.clips([best] if best is not None else []) for texts in clips.texts]
    before = {(name, said): written for name, said, written in base.texts} if base is not None else {}
    chosen = [texts for texts in kept if texts[:2] in before]
    sounds = _sounds(analysis, {texts[:2] for texts in chosen}) if chosen and analysis.audio else {}
    return [
        Example(
            name,
            said,
            [
                ("before", _aligned(analysis, said, before[name, said])),
                ("after", _aligned(analysis, said, written)),
            ],
            sounds.get((name, said), ""),
        )
        for name, said, written in chosen
    ]


def _aligned(analysis: Analysis, said: str, written: str) -> Sequence[Piece]:
    config = analysis.settings.base
    normalize = str if config.task == TRANSLATE else make_normalizer(config)
    return align([normalize(said)], [normalize(written)])[0]


def _sounds(analysis: Analysis, wanted: Collection[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Addresses with the sound of these clips, by name and text, of data that is on this machine."""
    import soundfile

    from trainer.data.audio import SAMPLE_RATE, AudioError, read_audio
    from trainer.data.clips import load_clips

    config, found = analysis.base, dict[tuple[str, str], str]()
    local = config.data == "demo" or Path(config.data).expanduser().exists()
    if not local or is_mix(config.data):  # whose sources may be anywhere
        return {}
    try:
        clips = load_clips(config, refuse_tokens=False).splits["validation"]
    except UserError:  # the data has changed since, or is gone
        return {}
    for clip in clips:
        key = clip.name, clip.text
        if key in wanted and key not in found:
            try:
                samples = read_audio(clip.source())
            except AudioError:
                continue
            content = io.BytesIO()
            soundfile.write(content, samples, SAMPLE_RATE, format="MP3")
            found[key] = "data:audio/mpeg;base64," + base64.b64encode(content.getvalue()).decode()
    return found

"""Transcripts of whole recordings: as an evaluation decodes, nothing lost at the cuts, timestamps only where right."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips, joined, teach_timestamps

from trainer.config import TrainConfig
from trainer.data.audio import AudioFile, read_audio
from trainer.errors import DataError, ModelError
from trainer.languages import CODES
from trainer.model.pretrained import DEMO_MODEL
from trainer.scoring.alignment import count_errors
from trainer.train import evaluate
from trainer.transcription.recogniser import Decoded, Recogniser
from trainer.transcription.recordings import find_recordings, read_spans
from trainer.transcription.transcribe import Transcriber
from trainer.transcription.transcripts import Failure, Transcript

RATE = 16_000


@pytest.fixture(scope="module")
def demo() -> Recogniser:
    """The embedded model."""
    return Recogniser("demo")


def write(path: Path, audio: np.ndarray, rate: int = RATE) -> Path:
    soundfile.write(path, audio, rate, subtype="FLOAT" if path.suffix == ".wav" else None)
    return path


def transcribe(
    recogniser: Recogniser, *paths: Path, pause: float | None = None
) -> list[Transcript | Failure]:
    return list(Transcriber(recogniser, pause=pause).transcribe(find_recordings(paths)))


def test_recordings_are_found_and_checked(tmp_path: Path) -> None:
    """All mistakes at once, before a model is loaded."""
    clip = demo_clips()[0][0]
    (tmp_path / "talks" / "monday").mkdir(parents=True)
    for name, kind in {
        "a.wav": "WAV",
        "monday/b.FLAC": "FLAC",
        "monday/.hidden.wav": "WAV",
        "../c.xyz": "WAV",
    }.items():
        soundfile.write(tmp_path / "talks" / name, clip, RATE, format=kind)
    (tmp_path / "talks" / "notes.txt").write_text("none")
    found = find_recordings([tmp_path / "talks", tmp_path / "c.xyz", tmp_path / "talks" / "a.wav"])
    assert [str(recording.name) for recording in found] == ["a.wav", "monday/b.FLAC", "c.xyz"]
    assert all(abs(recording.seconds - len(clip) / RATE) < 0.01 for recording in found)
    (tmp_path / "empty").mkdir()
    (tmp_path / "text.wav").write_text("no sound")
    with pytest.raises(DataError) as caught:
        find_recordings([tmp_path / name for name in ("empty", "text.wav", "nothing.wav", "c.xyz")])
    empty, nothing, text = (line.removeprefix(f"{tmp_path}/") for line in str(caught.value).splitlines())
    assert empty.startswith("empty: has no audio file in it")
    assert text.startswith("text.wav: cannot be decoded as WAV, FLAC, OGG or MP3")
    assert nothing == "nothing.wav: no such file or folder"


@pytest.mark.parametrize(("suffix", "rate", "channels"), [("wav", 16_000, 1), ("mp3", 44_100, 2)])
def test_read_in_blocks_as_in_one(tmp_path: Path, suffix: str, rate: int, channels: int) -> None:
    """The same samples as a training hears, in any block and part."""
    random = np.random.default_rng(0)
    audio = np.cumsum(random.standard_normal((50 * rate, channels)), axis=0)
    audio = (0.5 * audio / np.abs(audio).max()).astype(np.float32)
    path = tmp_path / f"long.{suffix}"
    soundfile.write(path, audio, rate)
    whole = read_audio(path)
    blocks = list(AudioFile(path).stream())
    assert len(blocks) > 2
    assert max(map(len, blocks)) <= 21 * RATE
    stream = np.concatenate(blocks)
    assert len(stream) == len(whole)
    assert np.abs(stream - whole).max() < 1e-4
    spans = [(0, 10), (10, 5_000), (319_000, 321_000), (321_000, 321_000 + 25 * RATE), (799_000, len(stream))]
    for (start, end), part in zip(spans, read_spans(AudioFile(path).stream(), spans), strict=True):
        assert np.array_equal(part, stream[start:end])


def test_decodes_as_an_evaluation_does(demo: Recogniser, small_config: TrainConfig) -> None:
    """Clip for clip: what `evaluate` reports is what one gets."""
    clips = demo_clips("validation")
    measured = evaluate(small_config.replace(generation_max_length=None, max_eval_clips=None), "validation")
    found = demo.decode([clip for clip, _ in clips], ["en"] * len(clips))
    same = sum(decoded.text == text for decoded, text in zip(found, measured.predictions, strict=True))
    assert same >= 94  # of 96: features are kept in half precision there
    assert all(decoded.ended or len(decoded.text.split()) > 3 for decoded in found)


def test_a_recording_is_its_sentences_one_after_the_other(tmp_path: Path, demo: Recogniser) -> None:
    """Nothing lost, nothing twice, whatever the batch; times are those of the sentences."""
    clips = [clip for clip, _ in demo_clips()[:20]]
    audio = joined(clips, 1.0)
    path = write(tmp_path / "whole.wav", audio)
    for batch in (16, 3):
        (found,) = transcribe(Recogniser("demo", batch_size=batch), path)
        assert isinstance(found, Transcript)
        parts = [audio[round(each.start * RATE) : round(each.end * RATE)] for each in found.segments]
        alone = [demo.decode([part], ["en"])[0].text for part in parts]
        assert found.text == " ".join(alone)
    begin = 1.0
    for clip, segment in zip(clips, found.segments, strict=True):
        assert begin - 0.25 <= segment.start < segment.end <= begin + len(clip) / RATE + 0.25
        spoken = np.flatnonzero(np.abs(clip) > 0.1 * np.abs(clip).max())
        assert segment.start <= begin + spoken[0] / RATE
        assert segment.end >= begin + spoken[-1] / RATE
        begin += len(clip) / RATE + 1.0


def test_what_fits_the_window_stays_whole_unless_pauses_are_asked_for(
    tmp_path: Path, demo: Recogniser
) -> None:
    first, second = (clip[:RATE] for clip, _ in demo_clips()[:2])
    audio = np.concatenate([first, np.zeros(RATE, np.float32), second])
    path = write(tmp_path / "short.wav", audio)
    (whole,), (parted,) = transcribe(demo, path), transcribe(demo, path, pause=0.5)
    assert isinstance(whole, Transcript)
    assert isinstance(parted, Transcript)
    assert [segment.text for segment in whole.segments] == [demo.decode([audio], ["en"])[0].text]
    assert len(parted.segments) == 2


def test_nobody_speaks(tmp_path: Path, demo: Recogniser) -> None:
    """Whisper would write something."""
    noise = 0.002 * np.random.default_rng(0).standard_normal(20 * RATE)
    assert demo.decode([noise[: 3 * RATE].astype(np.float32)], ["en"])[0].text
    kinds = {"silence": np.zeros(3 * RATE), "noise": noise, "nothing": np.zeros(0)}
    paths = [write(tmp_path / f"{name}.wav", audio) for name, audio in kinds.items()]
    assert [found.segments for found in transcribe(demo, *paths)] == [(), (), ()]  # type: ignore[union-attr]


def test_what_repeats_or_breaks_off_is_doubtful() -> None:
    text, loop = "turn on the kitchen light", "thank you " * 30
    doubts = [
        Decoded(*one).doubt for one in ((text, True), (text, False), (loop, True), (loop, False), ("", True))
    ]
    assert doubts == [None, "breaks off", "repeats", "repeats", None]


def test_what_breaks_off_is_halved(tmp_path: Path) -> None:
    """A model that may write four tokens at most: the halves fit more often, what does not is marked."""
    shutil.copytree(DEMO_MODEL, tmp_path / "terse")
    config = tmp_path / "terse" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_length": 4}))
    terse = Recogniser(str(tmp_path / "terse"))
    clips = [clip for clip, _ in demo_clips()[:8]]
    (found,) = transcribe(terse, write(tmp_path / "whole.wav", joined(clips, 0.8)))
    assert isinstance(found, Transcript)
    assert len(found.segments) > len(clips)
    assert any(segment.doubt == "breaks off" for segment in found.segments)
    assert all(
        before.end <= after.start for before, after in zip(found.segments, found.segments[1:], strict=False)
    )


def test_language_is_heard_where_none_is_given(tmp_path: Path) -> None:
    """From the audio, once a recording."""
    shutil.copytree(DEMO_MODEL, tmp_path / "open")
    config = tmp_path / "open" / "generation_config.json"
    settings = json.loads(config.read_text())
    config.write_text(json.dumps(settings | {"language": None, "task": None}))
    model = Recogniser(str(tmp_path / "open"))
    assert model.language is None
    (found,) = transcribe(model, write(tmp_path / "a.wav", demo_clips()[0][0]))
    assert isinstance(found, Transcript)
    assert found.language == "en"  # the only one that it ever heard
    assert found.text == transcribe(Recogniser("demo", language="english"), tmp_path / "a.wav")[0].text  # type: ignore[union-attr]
    del settings["lang_to_id"], settings["language"]
    config.write_text(json.dumps(settings))  # as of early 2023
    old = Recogniser(str(tmp_path / "open"))
    assert old.hear_language(demo_clips()[0][0]) == "en"


def test_languages_beams_and_timestamps(demo: Recogniser) -> None:
    """Languages are mixed in a batch as they are alone; times come in pairs and rise, whatever a model writes."""
    clips, languages = [clip for clip, _ in demo_clips()[:4]], ["en", "be", "en", "de"]
    mixed = demo.decode(clips, languages)
    assert [mixed[0], mixed[2]] == demo.decode([clips[0], clips[2]], ["en", "en"])
    assert Recogniser("demo", num_beams=3).decode(clips, languages) != mixed
    for heard in demo.decode(clips, languages, timed=True):
        times = [time for part in heard.parts for time in (part.start, part.end) if time is not None]
        assert times == sorted(times)
        assert heard.text == " ".join(part.text for part in heard.parts)
        assert "<|" not in heard.text
        assert all(0 <= time <= 4.0 for time in times)


def test_timestamps_that_were_never_taught_are_not_trusted(tmp_path: Path, demo: Recogniser) -> None:
    path = write(tmp_path / "long.wav", joined([clip for clip, _ in demo_clips()[:10]], 0.7))
    transcriber = Transcriber(demo)
    list(transcriber.transcribe(find_recordings([path])))
    assert transcriber.trusts_times is False
    forced = Transcriber(demo, times="model")
    (found,) = forced.transcribe(find_recordings([path]))
    assert isinstance(found, Transcript)
    assert all(0 <= segment.start <= segment.end <= found.seconds for segment in found.segments)
    shutil.copytree(DEMO_MODEL, tmp_path / "ours")
    (tmp_path / "ours" / "train_config.json").write_text("{}")
    assert Transcriber(Recogniser(str(tmp_path / "ours"))).trusts_times is False
    config = tmp_path / "ours" / "generation_config.json"
    settings = json.loads(config.read_text())
    settings["no_timestamps_token_id"] = (
        json.loads((DEMO_MODEL / "config.json").read_text())["vocab_size"] - 1
    )
    config.write_text(json.dumps(settings))
    with pytest.raises(ModelError, match="no timestamps in its vocabulary"):
        Transcriber(Recogniser(str(tmp_path / "ours")), times="model")


@pytest.mark.slow
def test_whispers_real_shape_and_vocabulary(tmp_path: Path, shared_data: Path) -> None:
    """Random weights: a window of 30 s, the language heard, a recording that is longer."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    folder = tmp_path / "tiny"
    shutil.copytree(shared_data / "whisper_tiny_processor", folder)
    folder.chmod(0o755)
    WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder)).save_pretrained(
        tmp_path / "weights"
    )
    shutil.copy(tmp_path / "weights" / "model.safetensors", folder)
    settings = json.loads((folder / "generation_config.json").read_text())
    (folder / "generation_config.json").chmod(0o644)
    (folder / "generation_config.json").write_text(json.dumps(settings | {"max_length": 8}))
    model = Recogniser(str(folder), batch_size=4)
    assert model.window == 30.0
    assert model.language is None
    clip = read_audio(next((shared_data / "jfk").glob("*.flac")))
    path = write(tmp_path / "long.wav", np.concatenate([clip] * 3))
    assert model.may_know_times
    (found,) = Transcriber(model, times="pauses").transcribe(find_recordings([path]))
    assert isinstance(found, Transcript)
    assert found.language in CODES
    assert found.seconds == pytest.approx(33.0)
    assert found.segments[-1].end > 29.0


@pytest.mark.slow
def test_timestamps_that_prove_right_are_used(tmp_path: Path) -> None:
    """The demo's model, taught times as Whisper was."""
    taught = Recogniser(str(teach_timestamps(tmp_path / "taught")))
    clips = demo_clips()[:48]
    path = write(tmp_path / "long.wav", joined([clip for clip, _ in clips], 0.7))
    transcriber = Transcriber(taught)
    told: list[float] = []
    (found,) = transcriber.transcribe(find_recordings([path]), told.append)
    assert isinstance(found, Transcript)
    assert transcriber.trusts_times is True
    assert told == sorted(told)
    assert told[-1] == found.recording.seconds
    # Every sentence is heard where it is said, and times go forward.
    begin, met = 0.7, 0
    for clip, _ in clips:
        middle = begin + len(clip) / RATE / 2
        met += any(segment.start <= middle <= segment.end for segment in found.segments)
        begin += len(clip) / RATE + 0.7
    assert met >= 38  # of 48
    assert all(
        before.start <= after.start for before, after in zip(found.segments, found.segments[1:], strict=False)
    )
    # As good as the base model is on single clips (about 70 %).
    assert count_errors([" ".join(text for _, text in clips)], [found.text]).percent < 90

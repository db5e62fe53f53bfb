"""Long recordings: cut where their rows or subtitles say, joined where these are short and near, decoded once."""

import re
from pathlib import Path

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips, recording, srt
from make_data import encode, lag, load, refused

import trainer.data.audio
from trainer.config import TrainConfig
from trainer.data.audio import AudioError, AudioFile, decode_each
from trainer.data.clip import Clip
from trainer.data.clips import ClipTable
from trainer.data.prepared import prepare
from trainer.data.split_data import load_split
from trainer.data.tables.subtitles import read_cues
from trainer.errors import DataError

RATE = 16_000


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve recordings of six formats, of ten cues each."""
    folder = tmp_path_factory.mktemp("talks")
    formats = [("alac", "ipod", "m4a"), ("libopus", "webm", "webm"), ("aac", "mp4", "mp4")]
    for number in range(12):
        audio, cues = recording(10 * number, 10)
        if number % 4 == 3:
            soundfile.write(folder / f"talk{number}.flac", audio, RATE)
        else:
            coding, container, suffix = formats[number % 4]
            content = encode(audio, coding, container, rate=48_000, picture=suffix == "mp4")
            (folder / f"talk{number}.{suffix}").write_bytes(content)
        name = f"talk{number}.srt" if number % 2 else f"talk{number}.en.srt"
        (folder / name).write_text(srt(cues), encoding="utf-8")
    return folder


def every(table: ClipTable) -> list[Clip]:
    return [clip for clips in table.splits.values() for clip in clips]


def test_cues_are_cut_right(talks: Path) -> None:
    table = load(talks, pack_seconds=0)
    texts = {text: audio for audio, text in demo_clips("train")[:120]}
    clips = every(table)
    assert len(clips) == 120
    for clip, (_, decoded) in zip(clips, decode_each(clip.source() for clip in clips), strict=True):
        assert not isinstance(decoded, AudioError), clip
        shift, like = lag(decoded.samples, texts[clip.text])
        assert abs(shift) <= 0.02 * RATE
        assert len(decoded.samples) == pytest.approx(len(texts[clip.text]), abs=0.02 * RATE)
        assert like > 0.8


@pytest.mark.parametrize(
    ("model", "most", "wanted"),
    [("whisper_tiny_processor", None, 20.0), ("whisper_tiny_processor", 8.0, 8.0), ("demo", 8.0, 4.0)],
)
def test_short_cues_that_are_near_are_joined(
    model: str, most: float | None, wanted: float, talks: Path, request: pytest.FixtureRequest
) -> None:
    """At most to the window of the model, which is 4 s of the demo's."""
    if model != "demo":
        model = str(request.getfixturevalue("shared_data") / model)
    table = load(talks, pack_seconds=most, model=model)
    clips = every(table)
    lengths = [clip.span.end - clip.span.start for clip in clips if clip.span and clip.span.end]
    assert max(lengths) <= wanted
    assert f"120 cues are {len(clips)} clips: short ones that are near are joined" in table.notes
    said, expected = [clip.text for clip in clips], [text for _, text in demo_clips("train")[:120]]
    assert sorted(" ".join(said).split()) == sorted(" ".join(expected).split())


def test_a_recording_is_in_one_split(talks: Path) -> None:
    table = load(talks)
    files = {role: {clip.path for clip in clips} for role, clips in table.splits.items()}
    assert len(files["train"]) + len(files["validation"]) + len(files["test"]) == 12
    assert not files["train"] & files["validation"]
    assert any("120 cues of subtitles beside 12 recordings" in note for note in table.notes)


def test_a_recording_is_decoded_once(talks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[object] = []

    class Counted(AudioFile):
        def __init__(self, source: str | bytes | Path, channel: int | None = None) -> None:
            opened.append(source)
            super().__init__(source, channel)

    monkeypatch.setattr(trainer.data.audio, "AudioFile", Counted)
    config = TrainConfig(data=str(talks), cache_dir=str(tmp_path), pack_seconds=0)
    data = prepare(config, workers=1)
    assert len(opened) == len(set(map(str, opened))) == 12
    assert sum(map(len, data.splits.values())) == 120
    assert all(split.seconds(0) > 0.3 for split in data.splits.values())


def test_times_that_cannot_be_are_told_with_their_line(tmp_path: Path) -> None:
    audio, cues = recording(0, 6)
    soundfile.write(tmp_path / "talk.wav", audio, RATE)
    soundfile.write(tmp_path / "other.wav", audio, RATE)
    (tmp_path / "other.vtt").write_text("WEBVTT\n\n" + srt(cues).replace(",", "."))
    wrong = list(cues)
    wrong[1] = (cues[1][1], cues[1][0], "backwards")
    wrong[2], wrong[3] = (cues[2][0], cues[3][0] + 0.5, "too long"), (cues[3][0], cues[3][1], "overlaps")
    wrong[5] = (cues[5][0], cues[5][1] + 1.5, "too late")
    (tmp_path / "talk.srt").write_text(srt(wrong))
    config = TrainConfig(data=str(tmp_path), cache_dir=str(tmp_path / "cache"), pack_seconds=0)
    told = [note for note in load(tmp_path, pack_seconds=0).notes if note.endswith("; it is left out")]
    assert [note.partition(": ")[0].rpartition("/")[2] for note in told] == [
        f"talk.srt, line {line}" for line in (6, 10, 14)
    ], "what can be known is told before anything is decoded"
    assert [note for note in load_split(config, "all").notes if note in told] == told
    drops = prepare(config.replace(max_dropped_share=1.0)).drops
    assert {drop.reason for drop in drops} == {"wrong_times"}
    details = sorted((drop.detail for drop in drops), key=lambda detail: "after the end" in detail)
    backwards, long, overlaps, late = details
    assert "talk.srt, line 6: ends at" in backwards
    assert "talk.srt, line 10: ends at" in long and "the next cue begins" in long
    assert "talk.srt, line 14: begins at" in overlaps
    assert f"ends at {cues[5][1] + 1.5:.2f} s, after the end of the recording" in late
    told_all = r"4 of 12 clips .* with impossible times \(the first is talk\.wav \["
    with pytest.raises(DataError, match=told_all):
        prepare(config.replace(max_dropped_share=0.1))


def test_rows_with_times(tmp_path: Path) -> None:
    audio, cues = recording(0, 12)
    both = np.stack([audio, -0.3 * np.roll(audio, 999)], axis=1)
    soundfile.write(tmp_path / "talk.wav", both, RATE, subtype="FLOAT")
    numbered = enumerate(cues)
    rows = [f"talk.wav,{text},{start:.6f},{end:.6f},{number % 2}" for number, (start, end, text) in numbered]
    table = tmp_path / "clips.csv"
    table.write_text("\n".join(["file,text,Start,End,speaker", *reversed(rows)]))
    clips = every(load(table, split_by=None, audio_channel=1))
    assert len(clips) == 12
    for clip, (_, decoded) in zip(clips, decode_each(clip.source() for clip in clips), strict=True):
        [expected] = [original for original, text in demo_clips("train")[:12] if text == clip.text]
        assert not isinstance(decoded, AudioError)
        assert np.abs(decoded.samples[10:-10] - expected[10 : len(decoded.samples) - 10]).max() < 1e-3
    assert len(every(load(table, split_by=None, pack_seconds=20))) == 12, "of other speakers"
    table.write_text(table.read_text().replace(",0\n", ",1\n"))
    assert len(every(load(table, split_by=None, pack_seconds=20))) < 12
    refused("belong together", table)
    assert len(every(load(table, split_by=None, segment_columns=None))) == 12
    lines = table.read_text().splitlines()
    other = tmp_path / "other.csv"
    other.write_text("\n".join([*lines, f"talk.wav,two at once,{cues[3][0] + 0.3},{cues[3][1] + 0.3},1"]))
    [note] = [note for note in load(other, split_by=None).notes if "overlap" in note]
    assert "rows that overlap others of the same recording are kept: " in note
    overlap = f"row 13: begins at {cues[3][0] + 0.3:.2f} s, and row 9 ends at {cues[3][1]:.2f} s"
    assert f"other.csv, {overlap}" in note
    assert not any("overlap" in note for note in load(table, split_by=None).notes)
    told = "segment_columns='from,to': no column 'from' in .*clips.csv"
    refused(told, table, segment_columns="from,to")
    table.write_text(table.read_text().replace(f"{cues[-1][0]:.6f}", "0:12"))
    refused("clips.csv, row 1: Start='0:12': must be seconds", table)


def test_what_is_said_in_a_cue(tmp_path: Path) -> None:
    cases = {
        ("<i>Where are you?</i>", "<b>Here</b>"): "Where are you? Here",
        (r"{\an8}Up here", "{Y:i}there"): "Up here there",
        ("- Yes.", "\u2013 No."): "Yes. No.",
        ("<v Roger Bingham>We are", "<00:16.500> in <c.loud>New</c>"): "We are in New",
        ("Tom &amp; Jerry&nbsp;&lt;3",): "Tom & Jerry <3",
        ("a well-known - thing", "-5 degrees"): "a well-known - thing 5 degrees",
        ("<i></i>", "&nbsp;"): "",
        ('<font color="#fff">x < y</font>',): "x < y",
        ("5 < 6 and 7 > 3",): "5 < 6 and 7 > 3",
    }
    path = tmp_path / "a.vtt"
    for lines, said in cases.items():
        path.write_text(
            "WEBVTT\n\n00:01.000 --> 00:02.000\n" + "\n".join(lines) + "\n\n00:03.000 --> 00:04.000\nend\n"
        )
        assert [text for *_, text, _ in read_cues(path)] == [*([said] if said else []), "end"]


SUBTITLES = {
    "no blank line between cues": (
        "1\n00:00:01,000 --> 00:00:02,000\nHello there\n2\n00:00:02,000 --> 00:00:03,000\nyou\n",
        ["Hello there", "you"],
    ),
    "a blank line inside": (
        "1\n00:00:01,000 --> 00:00:02,000\nHello\n\nthere\n\n2\n00:00:02,000 --> 00:00:03,000\n42\n",
        ["Hello there", "42"],
    ),
    "a line of one space, captions that roll up": (
        "WEBVTT\nKind: captions\n\n00:00:00.000 --> 00:00:02.000 align:start\n \nhello<00:00:00.500><c> there</c>\n\n"
        "00:00:02.000 --> 00:00:02.010\nhello there\n \n\n00:00:02.010 --> 00:00:04.000\nhello there\n"
        "how<00:00:03.000><c> are</c>\n\n00:00:04.000 --> 00:00:04.010\nhow are\n \n\n"
        "00:00:04.010 --> 00:00:06.000\nhow are\nyou\n",
        ["hello there", "how are", "you"],
    ),
    "people who say the same": (
        srt([(1, 2, "No."), (2, 3, "No."), (3, 4, "Yes."), (4, 5, "So.")]),
        ["No.", "No.", "Yes.", "So."],
    ),
}


@pytest.mark.parametrize("name", SUBTITLES)
def test_subtitles_as_programs_write_them(name: str, tmp_path: Path) -> None:
    content, said = SUBTITLES[name]
    (tmp_path / "a.srt").write_text(content)
    assert [text for *_, text, _ in read_cues(tmp_path / "a.srt")] == said


def test_files_of_subtitles(tmp_path: Path) -> None:
    path = tmp_path / "a.vtt"
    path.write_text(
        "\ufeffWEBVTT - a title\nKind: captions\n\nSTYLE\n::cue { color: red }\n\nNOTE 00:01 --> nothing\nmore\n\n"
        "intro\n00:01.000 --> 00:02.500 align:start position:0%\nHello\nyou\n\n"
        "01:00:00.5 --> 01:00:01.000\n<i> </i>\n\n"
        "01:00:02.000 --> 01:00:03.000\nbye",
        encoding="utf-8",
    )
    assert read_cues(path) == [(1.0, 2.5, "Hello you", 11), (3602.0, 3603.0, "bye", 18)]
    for content, words in (
        ("1\n00:00:01,000 -> 00:00:02,000\nhello", "has no cue with a text"),
        ("1\n00:00:61,000 --> 00:00:02,000\nhello", r"line 2: '00:00:61,000 --> .*' are not times"),
    ):
        path.write_text(content)
        with pytest.raises(DataError, match=words):
            read_cues(path)
    path.write_bytes("1\n00:00:01,000 --> 00:00:02,000\nh\u00e9".encode("latin-1"))
    with pytest.raises(DataError, match="is not UTF-8 text"):
        read_cues(path)


def test_recordings_and_subtitles_that_belong_to_none(talks: Path, tmp_path: Path) -> None:
    audio, cues = recording(0, 3)
    for name in ("a", "b", "c"):
        soundfile.write(tmp_path / f"{name}.flac", audio, RATE)
    (tmp_path / "a.de.srt").write_text(srt([(start, end, "nein") for start, end, _ in cues]))
    refused("name them alike: talk.mp4 and talk.srt, or talk.en.srt", tmp_path)
    (tmp_path / "a.en.srt").write_text(srt(cues))
    (tmp_path / "b.srt").write_text(srt(cues))
    (tmp_path / "x.srt").write_text(srt(cues))
    soundfile.write(tmp_path / "a.wav", audio, RATE)
    table = load(tmp_path, split_by=None)
    assert {clip.path[-6:] for clip in every(table)} == {"a.flac", "b.flac"}
    assert "nein" not in {clip.text for clip in every(table)}
    for told in (
        rf"have the same name beside them: 1, such as {tmp_path}/a\.wav$",
        "recordings without subtitles of the same name beside them: 1",
        r"subtitles without a recording of the same name.*x\.srt",
    ):
        assert any(re.search(told, note) for note in table.notes), told

"""`tune-whisper transcribe`: what is printed, what is written, and one clear line for every mistake."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips, joined
from make_data import demo_copy

from tune.cli import main

RATE = 16_000
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def talks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two recordings to be in: six sentences and one, and a file that is no audio beside them."""
    (tmp_path / "talks").mkdir()
    clips = [clip for clip, _ in demo_clips()]
    soundfile.write(tmp_path / "talks" / "long.wav", joined(clips[:6], 0.8), RATE)
    soundfile.write(tmp_path / "talks" / "short.flac", clips[6], RATE)
    (tmp_path / "notes.txt").write_text("no sound")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Exit code, standard output and standard error of `tune-whisper transcribe`."""

    def transcribe(*words: str) -> tuple[int, str, str]:
        code = main(["transcribe", *words])
        done = capsys.readouterr()
        return code, done.out, done.err

    return transcribe


def test_only_the_transcript_is_printed(talks: Path, run: Run) -> None:
    """So that it can be piped; a heading where there are several recordings; JSON a line each."""
    code, out, _ = run("demo", "talks/long.wav")
    assert code == 0
    assert len(out.splitlines()) == 6
    assert all(set(line) <= set("abcdefghijklmnopqrstuvwxyz ") for line in out.splitlines())
    text = run("demo", "talks")[1]
    assert text.startswith(f"== talks/long.wav ==\n{out}== talks/short.flac ==\n")
    code, out, _ = run("demo", "talks", "--format", "json", "--batch-size", "2")
    assert code == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert first["text"] == " ".join(text.splitlines()[1:7])
    assert second["text"] == text.splitlines()[8]
    assert first["seconds"] == pytest.approx(soundfile.info("talks/long.wav").duration, abs=0.001)


def test_a_file_for_every_recording(talks: Path, run: Run) -> None:
    (talks / "talks" / "monday").mkdir()
    shutil.copy("talks/short.flac", "talks/monday/short.flac")
    code, out, err = run("demo", "talks", "--format", "srt", "--output", "subtitles")
    assert (code, out) == (0, "")
    names = ["subtitles/long.srt", "subtitles/monday/short.srt", "subtitles/short.srt"]
    assert sorted(str(path.relative_to(talks)) for path in (talks / "subtitles").rglob("*.srt")) == names
    assert all(f"wrote {name}" in err for name in names)
    code, _, err = run("demo", "talks", "--format", "srt", "--output", "subtitles")
    assert code == 2
    assert "subtitles/long.srt exists already" in err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("demo nothing.wav", "nothing.wav: no such file or folder"),
        ("demo talks --batch-size 0", "--batch-size 0: must be at least 1"),
        ("demo talks --language klingon", "language='klingon': Whisper does not know this language"),
        ("demo talks --format srt", "subtitles of 2 recordings need one file each; give --output DIR"),
        ("demo talks --compare demo --output x", "--compare: prints a table or JSON"),
        ("demo talks --compare nobody", "model 'nobody': is not a folder"),
        ("demo talks/short.flac again/short.flac --output x", "would both become short.txt"),
        ("demo talks --output notes.txt", "--output notes.txt: is a file; give a folder"),
        ("demo", "the following arguments are required: AUDIO"),
    ],
)
def test_mistakes(talks: Path, run: Run, words: str, told: str) -> None:
    (talks / "again").mkdir()
    shutil.copy("talks/short.flac", "again/short.flac")
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("loading")]
    assert line.startswith("error: ")
    assert told in line


def test_damaged_and_empty_recordings(talks: Path, run: Run) -> None:
    """One that is cut is transcribed as far as it goes, and one that cannot be read fails alone."""
    content = (talks / "talks" / "long.wav").read_bytes()
    (talks / "talks" / "cut.wav").write_bytes(content[: len(content) // 2])
    soundfile.write(
        talks / "talks" / "noise.wav", 0.01 * np.random.default_rng(0).standard_normal(9 * RATE), RATE
    )
    (talks / "talks" / "text.wav").write_text("no sound at all")
    code, out, err = run("demo", "talks", "--format", "json")
    assert code == 1
    found = {Path(line["file"]).name: line for line in map(json.loads, out.splitlines())}
    assert list(found) == ["cut.wav", "long.wav", "noise.wav", "short.flac"]
    assert found["cut.wav"]["seconds"] == pytest.approx(found["long.wav"]["seconds"] / 2, abs=0.01)
    assert found["cut.wav"]["incomplete"].startswith("cut off or damaged: announces")
    for line in (
        "error: talks/text.wav: cannot be decoded",
        "warning: talks/cut.wav: cut off or damaged: announces",
        "warning: talks/noise.wav: the transcript is empty: no speech was found in it",
    ):
        assert line in err


def test_two_models_side_by_side(talks: Path, run: Run) -> None:
    demo_copy(talks / "terse", "generation_config.json", max_length=2)
    code, out, err = run("demo", "talks/long.wav", "--compare", "./terse")
    assert code == 0
    lines = out.splitlines()
    assert lines[0] == "== talks/long.wav =="
    assert lines[1].split() == ["time", "./terse", "demo"]
    assert "*" in out
    assert "differ (" in lines[-1]
    found = json.loads(run("demo", "talks/long.wav", "--compare", "./terse", "--format", "json")[1])
    assert found["text"] == " ".join(run("demo", "talks/long.wav")[1].split())
    assert found["base"]["model"] == "./terse"
    assert found["base"]["text"] != found["text"]
    code, _, err = run("./terse", "talks/long.wav")
    assert "warning: talks/long.wav: the text is cut off at 00:0" in err

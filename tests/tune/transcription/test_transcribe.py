"""`tune-whisper transcribe`: what is printed, what is written, and one clear line for every mistake."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips, joined
from made_logs import MadeLog, whole_search

from trainer.model.pretrained import DEMO_MODEL
from tune.cli import main
from tune.commands.transcribe import transcribe_parser
from tune.util.console import clock

RATE = 16_000
Run = Callable[..., tuple[int, str, str]]
FROZEN = {
    **{"model": None, "audio": None, "--compare": None, "--html": None, "--format": "text", "--output": None},
    **{"--force": False, "--language": None, "--task": None, "--batch-size": 16, "--num-beams": 1},
    **{"--pause": None, "--channel": None, "--times": "auto", "--storage": "experiments"},
}


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


def test_arguments_are_frozen() -> None:
    actions = [action for action in transcribe_parser()._actions if action.dest != "help"]
    assert {(action.option_strings or [action.dest])[0]: action.default for action in actions} == FROZEN


def test_only_the_transcript_is_printed(talks: Path, run: Run) -> None:
    """So that it can be piped; a line a segment, a heading where there are several recordings; JSON a line each."""
    code, out, err = run("demo", "talks/long.wav")
    assert code == 0
    assert len(out.splitlines()) == 6
    assert all(set(line) <= set("abcdefghijklmnopqrstuvwxyz ") for line in out.splitlines())
    assert "1 recording, 00:" in err
    assert "real-time factor" in err
    assert err.rstrip().endswith("times by the pauses")
    text = run("demo", "talks")[1]
    assert text.startswith(f"== talks/long.wav ==\n{out}== talks/short.flac ==\n")
    code, out, _ = run("demo", "talks", "--format", "json", "--batch-size", "2")
    assert code == 0
    first, second = (json.loads(line) for line in out.splitlines())
    assert [segment["text"] for segment in first["segments"]] == text.splitlines()[1:7]
    assert first["text"] == " ".join(text.splitlines()[1:7])
    assert second["text"] == text.splitlines()[8]
    assert (first["file"], first["model"], first["language"]) == ("talks/long.wav", "demo", "en")
    assert first["seconds"] == pytest.approx(soundfile.info("talks/long.wav").duration, abs=0.001)


def test_a_file_for_every_recording(talks: Path, run: Run) -> None:
    (talks / "talks" / "monday").mkdir()
    shutil.copy("talks/short.flac", "talks/monday/short.flac")
    code, out, err = run("demo", "talks", "--format", "srt", "--output", "subtitles")
    assert (code, out) == (0, "")
    written = sorted(
        str(path.relative_to(talks)) for path in (talks / "subtitles").rglob("*") if path.is_file()
    )
    assert written == ["subtitles/long.srt", "subtitles/monday/short.srt", "subtitles/short.srt"]
    assert all(f"wrote {name}" in err for name in written)
    lines = (talks / "subtitles" / "long.srt").read_text().splitlines()
    assert lines[0] == "1"
    assert lines[1].startswith("00:00:0")
    assert sum(" --> " in line for line in lines) == 6
    before = {name: (talks / name).stat().st_mtime_ns for name in written}
    code, _, err = run("demo", "talks", "--format", "srt", "--output", "subtitles")
    assert code == 2
    assert err == (
        "error: --output subtitles: subtitles/long.srt and 2 more exists already; --force replaces it\n"
    )
    assert run("demo", "talks", "--format", "srt", "--output", "subtitles", "--force")[0] == 0
    assert all((talks / name).stat().st_mtime_ns > time for name, time in before.items())


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("demo notes.txt", "notes.txt: cannot be decoded as WAV, FLAC, OGG or MP3"),
        ("demo talks nothing.wav", "nothing.wav: no such file or folder"),
        ("nobody talks", "model 'nobody': is no folder, no experiment in experiments"),
        ("old talks", "model='old': pytorch_model.bin is a pickle, which is not loaded"),
        ("demo talks --batch-size 0", "--batch-size 0: must be at least 1"),
        ("demo talks --pause 0", "--pause 0: must be from 0.05 to 60 seconds"),
        ("demo talks --language klingon", "language='klingon': Whisper does not know this language"),
        ("demo talks --format srt", "subtitles of 2 recordings are as many files; give --output DIR"),
        (
            "demo talks --force",
            "--force: replaces files of --output or --html; give one of them or remove it",
        ),
        ("demo talks --html a.html", "--html: shows differences; give --compare BASE too"),
        ("demo talks --compare demo --output x", "--compare: prints a table, or JSON"),
        ("demo talks --compare demo --format vtt", "it goes with neither --output nor subtitles"),
        ("demo talks --compare demo --times model", "both models hear the same segments"),
        ("demo talks --compare demo --html notes.txt", "--html notes.txt: exists already"),
        ("demo talks --compare demo --html no/a.html", "--html no/a.html: no folder no"),
        ("demo talks --compare demo --html again --force", "--html again: is a folder"),
        ("demo talks --compare nobody", "model 'nobody': is no folder"),
        ("demo talks/short.flac again/short.flac --output x", "would both become short.txt"),
        ("demo talks --output notes.txt", "--output notes.txt: is a file; give a folder"),
        ("demo talks --output again --force", "--output again: again/long.txt is a folder"),
        ("demo", "the following arguments are required: AUDIO"),
    ],
)
def test_mistakes_are_told_before_anything_is_loaded(talks: Path, run: Run, words: str, told: str) -> None:
    (talks / "again" / "long.txt").mkdir(parents=True)
    shutil.copy("talks/short.flac", "again/short.flac")
    (talks / "old").mkdir()
    for name in ("config.json", "pytorch_model.bin"):
        (talks / "old" / name).write_text("{}")
    code, out, err = run(*words.split())
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if not line.startswith("loading")]
    assert line.startswith("error: ")
    assert told in line


def test_files_and_folders_that_cannot_be_written(talks: Path, run: Run) -> None:
    for name in (".short.txt.partial", ".a.partial"):  # root may write to any folder, but not to this
        (talks / "x" / name).mkdir(parents=True)
    told = "error: --output x: cannot be written: Is a directory (x/.short.txt.partial)"
    assert run("demo", "talks/short.flac", "--output", "x")[2].splitlines()[-1] == told
    told = "error: --html x/a: cannot be written: Is a directory (x/.a.partial)"
    assert run("demo", "talks/short.flac", "--compare", "demo", "--html", "x/a")[2].splitlines()[-1] == told


@pytest.mark.parametrize("more", [[], ["--compare", "demo"]])
def test_nobody_reads_the_rest(talks: Path, more: list[str]) -> None:
    """As behind `| head -1`."""
    read, write = os.pipe()
    os.close(read)
    done = subprocess.run(
        [sys.executable, "-m", "tune", "transcribe", "demo", "talks/short.flac", *more],
        stdout=write,
        stderr=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        text=True,
        timeout=560,
        check=False,
    )
    os.close(write)
    assert (done.returncode, done.stderr.replace("loading the model ...\n", "")) == (1, "")


def test_a_damaged_recording_is_transcribed_as_far_as_it_goes(talks: Path, run: Run) -> None:
    """With a warning and the exit code of what could not be read to its end."""
    content = (talks / "talks" / "short.flac").read_bytes()
    (talks / "talks" / "middle.flac").write_bytes(content[: len(content) // 2] + bytes(len(content) // 2))
    soundfile.write(talks / "talks" / "hours.wav", soundfile.read("talks/short.flac")[0], RATE)
    hours = bytearray((talks / "talks" / "hours.wav").read_bytes())
    hours[40:44] = (8 * 3600 * 2 * RATE).to_bytes(4, "little")
    (talks / "talks" / "hours.wav").write_bytes(hours)
    code, out, err = run("demo", "talks", "--format", "json")
    assert code == 1
    found = {line["file"]: line for line in map(json.loads, out.splitlines())}
    assert list(found) == [f"talks/{name}" for name in ("hours.wav", "long.wav", "middle.flac", "short.flac")]
    assert 0 < found["talks/middle.flac"]["seconds"] < found["talks/short.flac"]["seconds"]
    warning = next(line for line in err.splitlines() if line.startswith("warning: talks/middle.flac"))
    assert ": cut off or damaged: announces " in warning
    assert warning.endswith(f"{found['talks/middle.flac']['incomplete']}; transcribed as far as it goes")
    heard = sum(line["seconds"] for line in found.values())
    assert f"4 recordings, {clock(heard)} of audio in " in err
    assert err.rstrip().endswith("2 could not be read to their ends")


def test_recordings_as_programs_write_them(talks: Path, run: Run) -> None:
    """Of unknown length, joined to one file, with channels that cancel each other: all of it is heard."""
    speech, rate = soundfile.read(talks / "talks" / "short.flac", dtype="float32")
    content = bytearray((talks / "talks" / "short.flac").read_bytes())
    content[21] &= 0xF0
    content[22:26] = bytes(4)
    (talks / "talks" / "stream.flac").write_bytes(content)
    soundfile.write(talks / "talks" / "opposite.wav", np.stack([speech, -speech], axis=1), rate)
    soundfile.write(talks / "talks" / "part.mp3", speech, rate)
    part = (talks / "talks" / "part.mp3").read_bytes()
    (talks / "talks" / "joined.mp3").write_bytes(2 * part)
    names = ("short.flac", "stream.flac", "opposite.wav", "part.mp3", "joined.mp3")
    code, out, err = run("demo", *(f"talks/{name}" for name in names), "--format", "json")
    assert code == 0
    short, stream, opposite, part, joined = (json.loads(line) for line in out.splitlines())
    assert short["text"] == stream["text"] == opposite["text"] != ""
    assert joined["seconds"] == pytest.approx(2 * part["seconds"], abs=0.01)
    assert [line for line in err.splitlines() if line.startswith("warning: ")] == [
        "warning: talks/opposite.wav: its channels cancel each other (opposite phase): one of them was taken"
    ]


@pytest.mark.parametrize("more", [[], ["--compare", "demo"], ["--output", "x", "--force"]])
def test_files_that_cannot_even_be_opened_fail_alone(talks: Path, run: Run, more: list[str]) -> None:
    """In a folder or named one by one, as a shell writes `*.wav`; each with its own reason, also in JSON."""
    reasons = {
        "empty.wav": "the file is empty",
        "link.wav": "cannot be read: No such file or directory (gone.wav, to which it is a link)",
        "text.wav": "cannot be decoded as WAV, FLAC, OGG or MP3: Format not recognised",
    }
    (talks / "talks" / "empty.wav").touch()
    (talks / "talks" / "link.wav").symlink_to("gone.wav")
    (talks / "talks" / "text.wav").write_text("no sound")
    named = sorted(str(path) for path in Path("talks").iterdir())
    for given in (["talks"], named):
        code, out, err = run("demo", *given, "--format", "json", *more)
        assert code == 1
        told = [line for line in err.splitlines() if line.startswith("error: ")]
        assert told == [f"error: talks/{name}: {reason}" for name, reason in reasons.items()]
        written = [path.read_text() for path in sorted(Path("x").glob("*.json"))] or out.splitlines()
        found = {Path(line["file"]).name: line.get("error") for line in map(json.loads, written)}
        assert found == {"long.wav": None, "short.flac": None} | reasons


def test_what_the_user_may_not_read_is_told_as_that(talks: Path) -> None:
    (talks / "talks" / "mine").mkdir()
    shutil.copy("talks/short.flac", "talks/mine/short.flac")
    code = """
import os, sys
from pathlib import Path
import soundfile
from trainer.data.audio import AudioFile
from trainer.transcription.recordings import find_recordings
for folder in ("talks/mine", "talks/long.wav"):
    os.chmod(folder, 0)
if not os.getuid():
    os.seteuid(65534)
for recording in find_recordings([Path("talks"), Path("talks/mine/short.flac")]):
    try:
        print(recording.name, sum(map(len, AudioFile(recording.path).stream())))
    except Exception as error:
        print(recording.name, error)
"""
    if not os.getuid():
        for folder in (talks, *list(talks.parents)[:3]):
            folder.chmod(0o755)  # pytest's own folders are root's alone
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        text=True,
        check=False,
    )
    samples = soundfile.info(talks / "talks" / "short.flac").frames
    assert done.stdout.splitlines() == [
        "long.wav cannot be read: Permission denied",
        "mine cannot be read: Permission denied",
        f"short.flac {samples}",
        "short.flac cannot be read: Permission denied",
    ], done.stderr


def terse(talks: Path, most: int) -> None:
    """A model that may write so many tokens at most."""
    shutil.copytree(DEMO_MODEL, talks / "terse")
    config = talks / "terse" / "generation_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"max_length": most}))


def test_warnings_of_what_is_doubtful(talks: Path, run: Run) -> None:
    terse(talks, 2)
    code, _, err = run("./terse", "talks/long.wav")
    assert code == 0
    assert "warning: talks/long.wav: the text breaks off at 00:0" in err


def test_empty_transcripts_are_told(talks: Path, run: Run) -> None:
    """On the screen and in JSON; speech at -60 dBFS is no reason for one."""
    shutil.copytree("talks", "soft")
    rng = np.random.default_rng(0)
    kinds = {"noise": 0.001 * rng.standard_normal(9 * RATE), "silence": np.full(RATE, 0.1)}
    for name, audio in kinds.items():
        soundfile.write(talks / "soft" / f"{name}.wav", audio, RATE)
    audio, _ = soundfile.read("talks/long.wav")
    soundfile.write("soft/long.wav", audio / np.abs(audio).max() / 1000, RATE, subtype="FLOAT")
    code, out, err = run("demo", "soft", "--format", "json")
    assert code == 0
    found = {Path(line["file"]).stem: line for line in map(json.loads, out.splitlines())}
    assert [found[name].get("empty") for name in ("long", "short", "noise", "silence")] == [
        *(None, None, "no speech", "silence")
    ]
    assert len(found["long"]["segments"]) == 6
    warnings = [line for line in err.splitlines() if line.startswith("warning: ")]
    assert warnings == [
        "warning: soft/noise.wav: the transcript is empty: there is sound, but no speech was found in it",
        "warning: soft/silence.wav: the transcript is empty: the recording is silent, every sample is the same",
    ]


def test_two_models_side_by_side(talks: Path, run: Run) -> None:
    terse(talks, 6)
    code, out, err = run("demo", "talks/long.wav", "--compare", "./terse", "--html", "d.html")
    assert code == 0
    assert "wrote d.html" in err
    assert "<html" in (talks / "d.html").read_text()
    lines = out.splitlines()
    assert lines[0] == "== talks/long.wav =="
    assert lines[1].split() == ["time", "./terse", "demo"]
    assert "*" in out  # differences, where there are no colours
    found = json.loads(run("demo", "talks/long.wav", "--compare", "./terse", "--format", "json")[1])
    assert found["models"] == {"base": "./terse", "model": "demo"}
    assert found["text"]["model"] == " ".join(run("demo", "talks/long.wav")[1].split())
    assert found["text"]["base"] == " ".join(run("./terse", "talks/long.wav")[1].split())
    assert f"{found['changed']} of {found['count']} words differ" in lines[-1]
    assert found["changed"] > 0
    same = json.loads(run("demo", "talks/short.flac", "--compare", "demo", "--format", "json")[1])
    assert (same["changed"], same["count"]) == (0, len(same["text"]["model"].split()))


def test_an_experiments_best_trial(talks: Path, run: Run) -> None:
    """From its checkpoint, without an export; one that has none says what to do."""
    made = MadeLog(talks / "experiments" / "mine")
    whole_search(made)
    shutil.copytree(DEMO_MODEL, made.folder / "trials" / "001" / "checkpoint_3200")
    code, out, err = run("mine", "talks/short.flac")
    assert code == 0, err
    assert out == run("demo", "talks/short.flac")[1]
    gone = MadeLog(talks / "experiments" / "gone")
    whole_search(gone, dropped=["001", "002"])
    code, _, err = run("gone", "talks/short.flac")
    assert code == 2
    assert err == "error: experiment 'gone': the weights of its best trial are gone\n"
    (made.folder / "events.jsonl").unlink()
    assert "has no events.jsonl: its search never began a trial" in run("mine", "talks")[2]


def test_on_a_terminal_the_transcript_still_goes_where_it_was_sent(talks: Path) -> None:
    """A live line on standard error must not swallow what goes to a pipe."""
    ours, theirs = pty.openpty()
    shown: list[bytes] = []

    def read() -> None:
        try:
            while part := os.read(ours, 4096):
                shown.append(part)
        except OSError:  # closed by the other side
            return

    reader = threading.Thread(target=read)
    reader.start()
    done = subprocess.run(
        [sys.executable, "-m", "tune", "transcribe", "demo", "talks"],
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm", "PYTHONPATH": str(Path(__file__).resolve().parents[3])},
        text=True,
        timeout=560,
        check=True,
    )
    os.close(theirs)
    reader.join(timeout=10)
    assert done.stdout.startswith("== talks/long.wav ==\n")
    assert len(done.stdout.splitlines()) == 9
    assert "real-time factor" in b"".join(shown).decode()


@pytest.mark.slow
def test_memory_does_not_grow_with_the_recording(tmp_path: Path) -> None:
    """An hour takes no more than a minute does, but for what the transcript itself is."""
    sentences = joined([clip for clip, _ in demo_clips()[:30]], 0.7)
    minute = np.resize(sentences, 60 * RATE)
    peaks = []
    for name, times in (("minute", 1), ("hour", 60)):
        with soundfile.SoundFile(tmp_path / f"{name}.wav", "w", RATE, 1) as file:
            for _ in range(times):
                file.write(minute)
        code = (
            "import resource, sys\nfrom tune.cli import main\n"
            f"main(['transcribe', 'demo', {str(tmp_path / name)!r} + '.wav', '--format', 'json'])\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=800, check=True
        )
        found = json.loads(done.stdout)
        assert found["seconds"] == 60.0 * times
        assert len(found["segments"]) >= 20 * times
        peaks.append(int(done.stderr.split()[-1]) / 1024)
    assert peaks[1] - peaks[0] < 150  # MiB; the hour's samples alone are 220

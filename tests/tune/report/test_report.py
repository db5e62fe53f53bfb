"""`tune-whisper report`: a page from every kind of experiment, and one line for every mistake."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from made_experiments import (
    RUNGS,
    TRAINING,
    MadeLog,
    MadeTrial,
    bring,
    change_settings,
    made_trial,
    write_experiment,
)
from pages import Page
from s3_server import give_keys, s3_server

from trainer.config import TrainConfig
from trainer.data.clips import load_clips
from trainer.data.drops import Drop
from tune.cli import main
from tune.experiments.events import CheckpointSaved, HeldOutMeasured
from tune.experiments.experiment import Experiment
from tune.experiments.folder import EVENTS_FILE, ExperimentFolder
from tune.experiments.log import ExperimentLog
from tune.experiments.object_stores.object_store import ObjectStore
from tune.experiments.storage import Storage
from tune.report.analysis import analyse
from tune.report.writer import make_page


def read(folder: ExperimentFolder) -> Page:
    """The experiment's report, which must be whole and need nothing but itself."""
    return Page((folder.path / "report" / "report.html").read_text(encoding="utf-8"))


def run(folder: ExperimentFolder, *words: str) -> int:
    return main(["report", folder.name, "--storage", str(folder.path.parent), *words])


def page_of(folder: ExperimentFolder, *words: str) -> Page:
    """The page alone, as `--output` writes it."""
    file = folder.path / "page.html"
    assert run(folder, "--output", str(file), *words) == 0
    return Page(file.read_text(encoding="utf-8"))


def small(storage: Path, **kinds: object) -> ExperimentFolder:
    """A finished search of nine trials with two finalists."""
    trials = [
        made_trial(1, [40, 25, 16.0], warmup=0.1),
        made_trial(2, [35, 20, 12.0], rate=2, warmup=0.2, batch=16),
        made_trial(3, [36, 21, 12.5], rate=1.5, warmup=0.0, batch=4),
        made_trial(4, [50.5], rate=0.2),
        made_trial(5, [48, 33], rate=0.4, accumulation=4),
        made_trial(6, [], rate=9),
        made_trial(7, [44], rate=5, warmup=0.25, error="Traceback ...\nRuntimeError: CUDA out of memory"),
        made_trial(8, [47], rate=0.3),
        made_trial(9, [45], rate=0.6),
    ]
    repeats = {"002": [12.2, 12.4], "003": [12.6, 13.4]}
    return write_experiment(storage, trials, repeats=repeats, **kinds)  # type: ignore[arg-type]


def test_winner_against_the_others(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = small(tmp_path, base_clips=True)
    assert run(folder) == 0
    page, shown = read(folder), capsys.readouterr().out
    lead = json.loads((folder.path / "results.json").read_text())["finalists"]["scores"][0]
    interval = "mean of 2 seeds, 95 % interval {:.2f} to {:.2f}".format(*lead["mean_interval"])
    for text in (
        "12.30 %",  # 12.2 and 12.4
        f"validation WER of the winner, trial 002, {interval}; the base model, demo, has 60.00 %",
        *(
            "stopped early",
            "WER 50.50 % at 384 samples is above 49.50 %, the cutoff among 3 trials",
            "loss or WER was not a finite number at 384 samples",
        ),
        *("RuntimeError: CUDA out of memory", "No clip was left out."),
    ):
        assert text in page.texts, text
    (gain,) = (line for line in shown.splitlines() if line.startswith("gain"))
    assert "47.70 points: 80 % fewer errors, 95 % interval 4" in gain
    assert f"Gain over the base model: {gain.removeprefix('gain').strip()}." in page.texts
    (search,) = (line for line in shown.splitlines() if line.startswith("search"))
    assert (
        "3.70 points more than one training with the usual settings (trial 001), which gained 44.00;"
        in search
    )
    assert f"The search itself: {search.removeprefix('search').strip()}." in page.texts
    assert "Trial 001 used them: completed, WER 16.00 % in one training." in page.text
    assert re.search(
        r"Finalists .* 002 2 12\.30 0\.14 \d+\.\d+ to \d+\.\d+ .*winner.* 003 2 13\.00 0\.57", page.text
    )
    assert "Trial 002 has the lowest mean; no difference to 003 is shown." in page.text
    assert "finished, 9 of 9 trials ended in 1:00:00" in page.text
    assert f"winner    WER 12.30 %  trial 002, {interval}" in shown
    assert "state     finished, 9 of 9 trials" in shown
    assert re.search(r"^report {4}.*made/report/report\.html$", shown, re.MULTILINE)
    assert [path.name for path in (folder.path / "report").iterdir()] == ["report.html"]


@pytest.mark.parametrize("run", ["002-r1", "003-r1"])
def test_the_exported_run_on_the_test_split(tmp_path: Path, run: str) -> None:
    """It is told of the run that is exported, and of no other that was measured before."""
    folder = small(tmp_path)
    log = ExperimentLog(folder.path / EVENTS_FILE)
    rates, baseline = ({"wer": wer, "cer": 5.0, "clips": 200.0} for wer in (13.5, 61.5))
    log.append(HeldOutMeasured(run=run, rates=rates, baseline=baseline))
    log.close()
    told = "WER of run 002-r1 on 200 held-out test clips; the base model has 61.50 %"
    tiles = page_of(folder).words["b"]
    assert (tiles[0] == "13.50 %", told in page_of(folder).texts) == (run == "002-r1", run == "002-r1")


def test_transcripts_before_and_after(tmp_path: Path) -> None:
    """Of clips whose texts were kept, with the sound of the demo unless it is not wanted."""
    folder = write_experiment(tmp_path, [made_trial(1, [40, 20, 10])], base_clips=True)
    (checkpoint,) = folder.path.rglob("utterances.json")
    clips = load_clips(TrainConfig()).splits["validation"][:2]
    for file, written in ((folder.path / "baseline_utterances.json", "wrong"), (checkpoint, clips[0].text)):
        texts = [[clip.name, clip.text, written] for clip in clips]
        file.write_text(json.dumps(json.loads(file.read_text()) | {"texts": texts}))
    page, silent = page_of(folder), page_of(folder, "--no-audio")
    shown = f"{clips[0].name} {clips[0].text} before: {clips[0].text} wrong after: {clips[0].text}"
    assert shown in page.text, page.text
    assert shown in silent.text
    assert (page.tags["audio"], silent.tags["audio"]) == (2, 0)


WHOLE = [40, 20, 10]
DROPS = [Drop("train", f"clip{n}.wav", "too_long_audio", f"{30 + n} s") for n in range(250)]
TOLD: dict[str, tuple[list[MadeTrial], dict[str, Any], Sequence[str]]] = {
    "what is counted where there are no words": (
        *([made_trial(1, WHOLE)], {"settings": {"language": "th", "data": "demo"}}),
        ["normaliser auto-th, unit: characters, so that it is the CER here. Thai: case"],
    ),
    "clips that were left out": (
        *([made_trial(1, WHOLE)], {"drops": [*DROPS, Drop("test", "x.wav", "empty_text", "no text")]}),
        ["251 of 1,451 clips (17 %) were left out.", "too long audio 250", "dropped_clips.jsonl"],
    ),
    "of many trials the best first": (
        [
            *(made_trial(number, [50 - number / 2], rate=number / 10) for number in range(1, 61)),
            made_trial(61, [20, 15, 9]),
        ],
        *({}, ["why it ended 061 9.00 3.00", "060 20.00"]),
    ),
}


@pytest.mark.parametrize("case", TOLD)
def test_what_a_page_tells(case: str, tmp_path: Path) -> None:
    trials, kinds, told = TOLD[case]
    text = page_of(write_experiment(tmp_path, trials, **kinds)).text
    for words in told:
        assert words in text


@pytest.mark.parametrize("state", ["running", "interrupted", "killed"])
def test_a_search_that_has_not_ended(tmp_path: Path, state: str) -> None:
    trials = [made_trial(number, [40, 20, 10.0 + number]) for number in range(1, 9)]
    folder = write_experiment(tmp_path, [*trials, made_trial(9, [38, 19, 9.0])], state=state, asked=20)
    page, told = page_of(folder), "running" if state == "running" else "interrupted"
    assert f"{told}, 8 of 20 trials ended" in page.text
    assert "lowest validation WER so far, trial 001" in page.text
    assert told in page.texts
    command = "report made" if told == "running" else "search --resume made"
    assert f"tune-whisper {command}" in page.text
    assert ("tune-whisper export" in page.text) == (told != "running")


CONDITIONS = """\
spec_augment: {type: choice, values: [false, true]}
dropout: {type: float, low: 0.0, high: 0.3}
mask_time_prob: {type: float, low: 0.02, high: 0.2, when: {spec_augment: true}}
weight_decay:
  - {type: float, low: 0.0, high: 0.1, when: {spec_augment: true}}
  - {type: float, low: 0.1, high: 0.9}
"""


def test_settings_under_conditions(tmp_path: Path) -> None:
    """A trial shows, and its figures hold, what was searched in it; a setting that was not is a gap."""
    space, trials = tmp_path / "space.yaml", []
    space.write_text(CONDITIONS)
    for number in range(1, 15):
        config = {"spec_augment": number % 2 == 0, "dropout": number / 50, "weight_decay": number / 200}
        more = (
            {"mask_time_prob": number / 100 + 0.02}
            if number % 2 == 0
            else {"weight_decay": number / 16 + 0.05}
        )
        trials.append(made_trial(number, [40, 20, 10 + number / 3], config={**config, **more}))
    folder = write_experiment(tmp_path / "experiments", trials, space=str(space))
    assert run(folder) == 0
    page = read(folder)
    slices = {f"slice-{name}" for name in ("spec-augment", "dropout", "mask-time-prob", "weight-decay")}
    assert set(page.figures) == {"curves", "parallel", *slices}
    assert "0 to 0.1, where spec_augment is true; 0.1 to 0.9" in page.text
    assert re.search(r"dropout 0 to 0\.3 \d+ %", page.text)
    assert "only for settings that all trials have" in page.text


HOSTILE = "</script><script>alert(1)</script><b>&\"' {{ 7 * 7 }}"


def test_nothing_of_the_users_is_html(tmp_path: Path) -> None:
    """Names of data, models, settings and errors come from others; a page that ran them would be theirs."""
    trials = [
        made_trial(1, [40, 20, 10]),
        made_trial(2, [41], error=f"ValueError: {HOSTILE}"),
        *(made_trial(n, [42 + n], rate=n) for n in (3, 4, 5)),
    ]
    folder = write_experiment(tmp_path, trials)
    known = Experiment.read(folder).settings
    hostile_config = {"data": HOSTILE, "model": f"/models/{HOSTILE}"}
    change_settings(
        folder.path,
        train_config=known.train_config | hostile_config,
        notes=(HOSTILE,),
        versions=known.versions | {"platform": HOSTILE},
    )
    hostile = folder.path.rename(tmp_path / "<b>&{{ 7 * 7 }}")
    assert main(["report", hostile.name, "--storage", str(tmp_path)]) == 0
    page = read(ExperimentFolder(hostile.name, hostile))
    assert page.text.count(" ".join(HOSTILE.split())) >= 5
    assert hostile.name in page.headings
    assert "ValueError: </script>" in page.text
    assert "<b" not in re.sub(r"<br>", "", page.labels), "plotly would take it for markup"


def test_a_training_has_a_small_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = MadeLog(tmp_path / "alone", **TRAINING)
    made.session()
    made.trial("001", 40.0, 20.0, 10.0)
    made.finish()
    made.close()
    folder = made.saved.folder
    assert run(folder) == 0
    shown = capsys.readouterr().out
    assert re.search(r"^state     finished, [\d:]+ in all$", shown, re.MULTILINE)
    assert "best      WER 10.00 %\n" in shown and "trial" not in shown
    page = read(folder)
    assert {"Learning curve", "Settings", "Data", "Next steps"} <= set(page.headings)
    assert "10.00 %" in page.texts
    assert f"{RUNGS[0]:,}" in page.texts
    assert list(page.figures) == ["curve"]


def test_a_training_that_was_interrupted_is_as_far_as_it_was_saved(tmp_path: Path) -> None:
    """Once after 0.00 epochs, as it was measured nowhere yet."""
    made = MadeLog(tmp_path / "alone", **TRAINING)
    made.session()
    checkpoint = f"trials/{made.begin('001')}/checkpoint_200"
    made.append(
        CheckpointSaved(trial_id="001", samples_seen=200, epoch=0.25, checkpoint=checkpoint, keep="all")
    )
    made.finish("interrupted")
    made.close()
    assert "interrupted after 0.25 epochs" in make_page(analyse(made.saved.folder))


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Experiments of which a file is not as it was written."""
    storage = tmp_path_factory.mktemp("damaged")
    names = ("made", "half", "space")
    made = {name: write_experiment(storage, [made_trial(1, [40])], name=name) for name in names}
    half = made["half"].path / "events.jsonl"
    half.write_bytes(half.read_bytes().splitlines(keepends=True)[0])
    space = Experiment.read(made["space"]).settings.space
    space["parameters"]["learning_rate"]["high"] = 5e-5
    change_settings(made["space"].path, space=space)
    return storage


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mdae"], ["no experiment 'mdae'", "there is", "made"]),
        (["made", "--output", "."], ["--output", "is a folder", "report.html"]),
        (["half"], ["'half'", "its search has not started a trial"]),
        (["space"], ["space/events.jsonl", "its space cannot be used: try_first"]),
    ],
)
def test_a_mistake_is_one_clear_line(
    words: list[str], said: list[str], damaged: Path, refused: Callable[..., str]
) -> None:
    line = refused("report", *words, "--storage", str(damaged))
    assert all(word in line for word in said), line


def test_from_an_object_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a machine that has nothing of it: small files come down, errors by clip are read where the weights lie."""
    give_keys(monkeypatch, tmp_path / "cache")
    made = small(tmp_path / "made", base_clips=True)
    with s3_server() as server:
        address = server.uri("here")
        store = ObjectStore(address)
        bring(made, store)
        shutil.move(tmp_path / "made", tmp_path / "another machine")
        assert main(["report", "made", "--storage", address]) == 0
        copy = Storage.parse(address).experiment("made")
        page = read(copy)
        assert store.read("made/report/report.html") == (copy.path / "report/report.html").read_bytes()
        assert capsys.readouterr().err == ""
        # Going on elsewhere, only its page is brought: all else is written by the machine that runs it.
        trials = [made_trial(1, [40, 20, 10]), made_trial(2, [41])]
        going = write_experiment(tmp_path, trials, name="open", state="killed")
        bring(going, store)
        assert main(["report", "open", "--storage", address]) == 0
        other = Storage.parse(address).experiment("open")
        (other.path / "space.yaml").write_text("changed here")
        assert main(["report", "open", "--storage", address]) == 0
        assert store.read("open/report/report.html") == (other.path / "report/report.html").read_bytes()
        assert store.read("open/space.yaml") == (going.path / "space.yaml").read_bytes()
        assert capsys.readouterr().err == ""
    assert "finished, 9 of 9 trials ended" in page.text
    assert "Gain over the base model: 47.70 points" in page.text
    assert f"--storage '{address}'" in page.text

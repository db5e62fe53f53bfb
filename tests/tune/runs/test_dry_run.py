"""What `--dry-run` says that a search costs."""

import importlib.util
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from demo_clips import demo_clips
from make_data import make_small_whisper
from plans import search_plan

from trainer.config import TrainConfig
from trainer.errors import UserError
from trainer.inspection import sample
from trainer.training.checkpoints import estimated_checkpoint_bytes
from tune.cli import main
from tune.cluster.resources import TrialResources
from tune.commands.job_request import read_request
from tune.experiments.storage import Storage
from tune.runs.data import look_at_clips, what_clips_show
from tune.runs.dry_run import describe_cost, estimate_samples
from tune.runs.plan import Plan
from tune.space.settings import SchedulerSettings
from tune.workers.inputs import shared_folders


def test_batches_under_conditions_are_those_that_a_trial_can_have(tmp_path: Path) -> None:
    """The largest of each setting never come together; a budget in steps would be one that no trial has."""
    path = tmp_path / "space.yaml"
    path.write_text(
        "weight_decay: {type: float, low: 0, high: 0.1}\n"
        "group_by_length: {type: choice, values: [false, true]}\n"
        "train_batch_size: {type: choice, values: [16, 32], when: {group_by_length: true}}\n"
        "gradient_accumulation_steps: {type: int, low: 1, high: 4, when: {group_by_length: false}}\n"
        "max_steps: 10\n"
    )
    storage = Storage.parse(str(tmp_path / "experiments"))
    plan = search_plan(storage, space=str(path), trials=8)
    assert plan.batch_sizes == [8, 16, 24, 32]
    assert plan.budget(100) == 320


@pytest.mark.parametrize(
    ("clips", "words", "told"),
    [
        (4, 10, "4 validation clips: too few to show any difference"),
        (
            22,
            5,
            "22 validation clips: differences under 6 points are noise; about 800 clips would show 1 point",
        ),
        (500, 10, "500 validation clips: differences under 0.9 points are noise"),
    ],
)
def test_what_the_clips_can_show(clips: int, words: int, told: str) -> None:
    """Of models that differ in a tenth of the words, by chance, 95 of 100 pairs lie within what is called noise."""
    assert what_clips_show(TrainConfig(language="en"), [" ".join(["Door,"] * words)] * clips) == told
    if " under " in told:
        points = float(told.split(" under ")[1].split(maxsplit=1)[0])
        drawn = np.random.default_rng(0).choice([-1, 0, 1], (2000, clips * words), p=[0.05, 0.9, 0.05])
        assert 0.93 < (100 * abs(drawn.mean(axis=1)) <= points).mean() < 0.98


def test_the_cost_of_a_search() -> None:
    resources = TrialResources(gpus=2, cpus=8, concurrent=4)
    assert describe_cost(72_000, 0.5, resources) == "about 2h30m with 4 trials at a time, 20 GPU-hours"
    settings, rungs = SchedulerSettings(), (1152, 2304, 4608, 9216)
    assert estimate_samples(settings, rungs, 8, [9216.0, 512.0], 0) == 4 * (9216 + 512), "nobody is stopped"
    assert 8 * 1152 < estimate_samples(settings, rungs, 8) < 0.65 * 8 * 9216


WAV = {"mine/a.wav": 1.0, "mine/b.wav": 1.5, "mine/c.wav": 2.0}
"""Files and their seconds."""
NOT_READY = {
    "files missing": ("x1.wav,one x2.wav,two x3.wav,three", "", "file not found"),
    "paths of Windows": (r"C:\x\a.wav,one C:\x\b.wav,two C:\x\c.wav,three", "", "file not found"),
    "too long": (
        "long.wav,one long.wav,two long.wav,three",
        "",
        "audio longer than the model's window of 4 s",
    ),
    "tokens": ("a.wav,<|en|>one b.wav,two c.wav,three", "", "hold tokens of Whisper"),
    "jobs": ("", "RAY_ADDRESS=http://head:8265", "RAY_ADDRESS=http://head:8265: start a search on a node"),
    "long folder": ("", f"TMPDIR=/tmp/{80 * 'x'}", "paths of its sockets would be too long; set RAY_TMPDIR"),
}
"""Rows of a table of clips, a variable, and what the line must say."""


@pytest.mark.parametrize("name", NOT_READY)
def test_what_a_search_would_stumble_over(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., str]
) -> None:
    rows, variable, told = NOT_READY[name]
    (tmp_path / "mine").mkdir()
    for file, seconds in {**WAV, "mine/long.wav": 5.0}.items():
        soundfile.write(tmp_path / file, 0.1 * np.sin(np.arange(int(16_000 * seconds))), 16_000)
    for unset in ("RAY_ADDRESS", "RAY_TMPDIR"):
        monkeypatch.delenv(unset, raising=False)
    monkeypatch.setenv(*(variable or "UNUSED=").split("="))
    data = []
    if rows:
        (tmp_path / "mine" / "clips.csv").write_text("\n".join(["audio,text", *rows.split(" ")]))
        data = ["--data", "mine/clips.csv", "--model", "demo", "--language", "en", "--set", "split_by=null"]
    assert told in refused("--space", "lr_batch", "--dry-run", *data)


def test_more_than_there_is(
    tmp_path: Path, refused: Callable[..., str], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "one.yaml").write_text("train_batch_size: {type: choice, values: [4, 8]}\n")
    line = refused("--space", "one.yaml", "--trials", "20", "--dry-run")
    assert "--trials 20: " in line and "has only 2 different settings; take --trials 2" in line
    assert main(["--space", "one.yaml", "--dry-run"]) == 0, "the usual 8 are as many as there are"
    told = "note: one.yaml has only 2 different settings, so that there are 2 trials"
    assert told in capfd.readouterr().out
    line = refused("--space", "lr_batch", "--trials", "1000000", "--keep-checkpoints", "all", "--dry-run")
    assert re.search(r"--storage .*: has .* GB free, and checkpoints take up to [\d.e+]+ GB", line), line


def test_one_clip_that_is_dropped_is_one_of_all(tmp_path: Path) -> None:
    rows = ["audio,text", *(f"{number}.wav,{'a word' if number else ''}" for number in range(9))]
    (tmp_path / "clips.csv").write_text("\n".join(rows))
    config = TrainConfig(model="demo", data=str(tmp_path / "clips.csv"), language="en", empty_text="drop")
    assert "dropped 1 of 9 clips: 1 no text" in look_at_clips(config, augments=False)[1]


def test_a_sample_is_read_where_features_were_not_computed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sample, "SAMPLED", 10)
    rows = ["audio,text"]
    for number, (clip, text) in enumerate(demo_clips()[:60]):
        soundfile.write(tmp_path / f"{number}.wav", clip, 16_000)
        rows.append(f"{number}.wav,{text}")
    (tmp_path / "clips.csv").write_text("\n".join(rows))
    (tmp_path / "1.wav").write_bytes(b"noise")
    asked = "--data clips.csv --model demo --language en --set cache_dir=cache --set max_dropped_share=0.2"
    assert main(["--space", "lr_batch", "--trials", "2", "--dry-run", *asked.split()]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"all files are there, and a sample of \d\d clips was read", printed), printed
    assert "warning: in the sample: dropped 1 of " in printed
    assert "uncertain" not in printed, "that is a matter of all clips"
    told = r"time: about \d\S+ with \S+ trials? at a time.* \(\d+\.\d ms a sample, measured on this machine\)"
    assert re.search(told, printed), printed
    assert not (tmp_path / "cache").exists()


def test_what_changed_clips_need_is_known_before_anything_starts(tmp_path: Path) -> None:
    def plan(space: str, **settings: object) -> Plan:
        storage = Storage.parse(str(tmp_path / "experiments"))
        return search_plan(storage, space=space, trials=1, settings=settings)

    assert plan("robust").augments
    for settings in ({}, {"augment": 0.5, "augment_strength": 0}):
        assert not plan("large_model", **settings).augments
    folder = tmp_path / "noises"
    with pytest.raises(UserError, match=r"^noise_dir='.*/noises': is not a folder; give one with .wav, "):
        look_at_clips(plan("robust", noise_dir=str(folder)).base, augments=True)
    folder.mkdir()
    (folder / "a.wav").touch()
    noisy = plan("robust", noise_dir=str(folder)).base
    with pytest.raises(UserError, match=r"noises': a.wav: Format not recognised.; remove or replace the"):
        look_at_clips(noisy, augments=True)
    soundfile.write(folder / "a.wav", [0.1] * 100, 16_000)
    assert len(look_at_clips(noisy, augments=True)[0].splits["train"]) == 800
    assert shared_folders(noisy, augments=True) == [folder]
    assert not shared_folders(noisy, augments=False)


def test_the_disk_has_room_for_the_largest_checkpoint_of_the_space(tmp_path: Path) -> None:
    """Those of the searched ranks were taken to be as large as that of the default rank."""

    def size(space: str) -> int:
        return search_plan(Storage.parse(tmp_path), space=space, trials=1).checkpoint_bytes()

    usual = TrainConfig(method="lora")
    largest = usual.replace(lora_rank=64, lora_targets="attention and feed-forward")
    assert size("lora") == estimated_checkpoint_bytes(largest) > estimated_checkpoint_bytes(usual)
    assert size("large_model") == estimated_checkpoint_bytes(TrainConfig())


LR = "learning_rate: {type: float, low: 1e-4, high: 1e-3, log: true}\n"
MISSING = "optimizer='adamw_8bit': bitsandbytes is not installed; pip install 'tune-whisper[8bit]'"
ENGINE = "optimizer='adafactor': DeepSpeed runs AdamW"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, on a machine without bitsandbytes."""
    found = importlib.util.find_spec

    def without(name: str, *rest: Any) -> Any:
        return None if name == "bitsandbytes" else found(name, *rest)

    monkeypatch.setattr(importlib.util, "find_spec", without)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("space", "words", "expected"),
    [
        (LR, ["--set", "optimizer=adamw_8bit"], MISSING),
        (LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}", [], MISSING),
        (LR + "optimizer: adafactor", ["--deepspeed"], ENGINE),
    ],
)
def test_a_search(
    here: Path, refused: Callable[..., str], space: str, words: list[str], expected: str
) -> None:
    (here / "space.yaml").write_text(space)
    assert expected in refused("--space", "space.yaml", *words)


def test_a_job_has_the_package_installed(here: Path) -> None:
    """It is the cluster that needs it, not the machine that sends the job."""
    (here / "space.yaml").write_text(LR + "optimizer: {type: choice, values: [adamw, adamw_8bit]}")
    place = ["--storage", "/mnt/all"]
    assert read_request(["--space", "space.yaml", *place]).extras == {"8bit"}
    assert read_request(["--space", "space.yaml", "--set", "optimizer=adafactor", *place]).extras == set()
    assert read_request(["train", "--set", "optimizer=adamw_8bit", *place]).extras == {"8bit"}


@pytest.fixture(scope="module")
def small_whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_small_whisper(tmp_path_factory.mktemp("models") / "small")


AUTOMATIC = """\
learning_rate: {type: float, low: auto, high: auto, log: true}
train_batch_size: {type: choice, values: [4, 8]}
"""


def test_a_dry_run_tells_the_rates_of_each_base_model(
    here: Path, capsys: pytest.CaptureFixture[str], small_whisper: Path
) -> None:
    words = f"--space space.yaml --data demo --trials 2 --dry-run --model {small_whisper}".split()
    (here / "space.yaml").write_text(AUTOMATIC)
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "below 40 %: usual 1.5e-05, searched 1.5e-06 to 0.00015" in told
    assert "above that: usual 0.00015, searched 1.5e-05 to 0.0015" in told
    assert "published trainings of this size (method full): 1, at 1e-05" in told
    usual = AUTOMATIC.replace("{type: float, low: auto, high: auto, log: true}", "auto")
    (here / "space.yaml").write_text(usual)
    assert main(words) == 0
    assert "fixed: learning_rate=auto" in capsys.readouterr().out
    assert main([*words, "--language", "de", "--set", "task=translate"]) == 0
    assert "fixed: learning_rate=3.75e-05" in capsys.readouterr().out


@pytest.mark.parametrize("high", ["1e-6", "1e-4"])
def test_a_range_that_is_empty_for_some_base_model_is_refused_at_once(
    here: Path, capsys: pytest.CaptureFixture[str], small_whisper: Path, high: str
) -> None:
    (here / "space.yaml").write_text(f"learning_rate: {{type: float, low: auto, high: {high}, log: true}}\n")
    code = main(["--space", "space.yaml", "--model", str(small_whisper), "--data", "demo", "--dry-run"])
    assert code == (2 if high == "1e-6" else 0)
    assert ("is above high" in capsys.readouterr().err) == (code == 2)

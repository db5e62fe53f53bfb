"""Trainings on a stream: they go on with the same clip, and leave out what cannot be used."""

import json
from pathlib import Path
from typing import Any

import pytest
from make_data import CLIPS, demo_rows, streaming, write_shards
from processes import run_workers
from training import train

from trainer.config import TrainConfig
from trainer.data.prepared import prepare
from trainer.errors import DataError
from trainer.training import streamed

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def config(small_config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """12 steps of 4 clips: more than an epoch."""
    folder = write_shards(tmp_path_factory.mktemp("shards"), "tar")
    settings = {"max_samples": 48, "train_batch_size": 2, "gradient_accumulation_steps": 2, "evaluations": 2}
    settings |= {"augment": 0.5, "dropout": 0.1, "max_eval_clips": 4, "log_every_seconds": 0.0}
    return streaming(small_config, folder, **settings)


def run(
    config: TrainConfig, folder: Path, resume: Path | None = None
) -> tuple[list[dict[str, Any]], list[list[str]]]:
    """What a training in processes of its own reported, and the clips of each in their order."""
    folder.mkdir(exist_ok=True)
    if resume is not None:
        (folder / "resume.json").write_text(json.dumps(str(resume)))
    run_workers("train", config, folder)
    rows = json.loads((folder / "rows-0.json").read_text())["rows"]
    names = ("step", "loss", "grad_norm", "wer", "eval_loss", "samples_seen")
    found = [{name: row[name] for name in names if name in row} for row in rows]
    return found, [(folder / f"stream-{rank}").read_text().splitlines() for rank in range(config.workers)]


def test_two_workers_go_on_with_the_same_clips_from_where_they_were_ended(
    config: TrainConfig, tmp_path: Path
) -> None:
    """Between evaluations; every step, evaluation and clip of both is that of the unbroken training."""
    config = config.replace(workers=2, gradient_accumulation_steps=1, spec_augment=True)
    rows, clips = run(config, tmp_path / "unbroken")
    (tmp_path / "ended").mkdir()
    (tmp_path / "ended" / "ends-after").write_text("5")
    assert run(config, tmp_path / "ended")[0][-1]["step"] == 5
    resumed, rest = run(config, tmp_path / "resumed", tmp_path / "ended" / "kept-5")
    later, again = ([row for row in found if row["step"] > 8] for found in (rows, resumed))
    assert again == later, "of the first steps of a process it logs the mean"
    for all_clips, last in zip(clips, rest, strict=True):
        assert len(all_clips) == 24
        assert last == all_clips[10:]
    assert not set(clips[0][:20]) & set(clips[1][:20])


def test_a_loading_process_reads_the_same(config: TrainConfig) -> None:
    """Its threads decode; what was loaded ahead when the training ended changes nothing."""
    data, losses = prepare(config), []
    for loaders in (0, 3):
        found: list[float] = []
        train(
            config.replace(dataloader_workers=loaders, max_samples=16, evaluations=1),
            lambda metrics, _, found=found: found.append(metrics["loss"]),  # type: ignore[misc]
            data=data,
        )
        losses.append(found)
    assert losses[0] == losses[1]


def test_clips_of_no_use_leave_their_places_empty(
    small_config: TrainConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of batches of one, a step without a usable clip has no gradient."""
    rows = {split: demo_rows(split, count) for split, count in CLIPS.items()}
    broken = rows["train"][::3]
    for row in broken:
        row["audio"] = {"bytes": b"noise", "path": row["audio"]["path"]}
    rows["train"][1]["text"] = "word " * 500
    settings = {"train_batch_size": 1, "max_samples": CLIPS["train"], "max_eval_clips": 2, "evaluations": 1}
    settings |= {"max_dropped_share": 0.5, "log_every_seconds": 0.0}
    config = streaming(small_config, write_shards(tmp_path, rows=rows), **settings)
    seen: list[Any] = []
    result = train(config, lambda metrics, _: seen.append(dict(metrics)))
    assert not result.diverged
    assert result.samples_seen == CLIPS["train"]
    still = [row for row in seen if row["loss"] == row["grad_norm"] == 0.0 and "wer" not in row]
    assert len(still) == len(broken) + 1
    monkeypatch.setattr(streamed, "_ENOUGH", 20)
    with pytest.raises(DataError) as error:
        train(config.replace(max_dropped_share=0.1))
    told = str(error.value)
    assert "training clips read so far" in told and "unreadable audio" in told and len(told.splitlines()) == 1


def test_hours_are_as_many_samples_as_clips_fill(config: TrainConfig) -> None:
    data = prepare(config)
    hours = config.replace(max_samples=None, max_hours=12 * data.stream.mean_seconds / 3600, evaluations=1)
    assert train(hours, data=data).samples_seen == 12

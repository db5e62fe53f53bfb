"""A model that repeats itself in the window of the trainings, and with what the judge compares trials there."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import soundfile
from looping_whisper import make_looping_whisper
from make_data import tone, write_manifest
from plans import search_plan
from processes import tune_whisper

from trainer.scoring.alignment import ErrorCounts
from trainer.scoring.objectives import combine
from trainer.train import Evaluation
from tune.experiments.experiment import Experiment
from tune.experiments.storage import Storage
from tune.runs import baseline

RATE = 16_000
SPACE = """\
learning_rate: {type: float, low: 1e-12, high: 1e-11}
train_batch_size: 2
max_train_clips: 12
max_samples: 12
scheduler: {rungs: 2, reduction_factor: 2, min_trials_per_rung: 9}
"""


@pytest.mark.slow
@pytest.mark.occasional
def test_trials_are_compared_as_they_are_measured_and_finalists_on_all_in_the_whole_window(
    tmp_path: Path,
) -> None:
    """Trials measure a part of the clips, in their window; so is the base model for the judge."""
    make_looping_whisper(tmp_path / "looping")
    rows = []
    for number in range(552):
        soundfile.write(tmp_path / f"short{number}.wav", tone(0.3, pitch=100 + number), RATE)
        text = " ".join(["door"] * (1 + number % 5))
        split = "train" if number < 12 else "validation"
        rows.append({"audio": f"short{number}.wav", "text": f"{text} {number}", "split": split})
    data = write_manifest(tmp_path / "many.csv", rows)
    (tmp_path / "many.yaml").write_text(SPACE)
    words = "--space many.yaml --experiment judged --model looping --data demo --trials 1 --finalists 1 --repeats 2"
    found = tune_whisper(
        *words.split(), "--data", str(data), "--language", "en", "--set", "audio_window=2.7", cwd=tmp_path
    )
    assert found.returncode == 0, found.stdout + found.stderr
    told = found.stdout
    assert "warning: audio_window=2.7: " in told
    assert (
        "trials are measured on 500 of 540 validation clips, always the same ones, and finalists on all"
        in told
    )
    assert "\n500 validation clips: differences under " in told
    state = Experiment.read(Storage.parse(str(tmp_path / "experiments")).experiment("judged")).state
    part, every = state.trial_base_rates, state.base_rates
    assert (part["clips"], every["clips"]) == (500, 540)
    assert part["wer"] > 2 * every["wer"], "the model is not what the test needs"
    (trial,) = state.records.all()
    # With such a learning rate they are the base model still.
    assert [wer for _, wer in trial.evaluations] == [part["wer"]] * 2
    assert [*trial.losses.values()] == [pytest.approx(part["loss"], rel=1e-5)] * 2
    assert trial.stop is None, "the base model is not worse than itself"
    for run in (*state.repeats.all(), state.best()):
        assert run.best_value == every["wer"]
        assert run.losses[run.samples_seen] == pytest.approx(every["loss"], rel=1e-5)
    assert (state.best().trial_id, sorted(state.best().members)) == ("001-a1", ["001-r1", "001-r2"])


def test_with_several_sources_both_windows_are_compared_as_a_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that writes the same in each: once 30 % in place of 24 %, as a source was scaled by all clips."""
    sources = ["large"] * 400 + ["small"] * 30
    errors = np.array([4] * 400 + [2] * 30)

    def measure(session: Any, config: Any, *, clips: list[int] | None = None) -> Evaluation:
        rows = list(range(len(sources))) if clips is None else clips
        counts = ErrorCounts(np.stack([10 - errors[rows], errors[rows], 0 * errors[rows], 0 * errors[rows]]))
        rates, utterances = combine({"wer": counts}, [sources[row] for row in rows], config.objective)
        written = {"tokens": [5] * len(rows), "token_limit": 99}
        return Evaluation(
            rates={**rates, "clips": len(rows)}, predictions=[], utterances=utterances, **written
        )

    monkeypatch.setattr(baseline, "measure_base_model", measure)
    plan = search_plan(Storage.parse(tmp_path), space="lr_batch", settings={"objective": "sources"})
    plan.folder.mkdir()
    split = type(
        "Split", (list,), {"origins": SimpleNamespace(sources=sources), "most_frames": lambda _: 300}
    )
    session: Any = SimpleNamespace(
        plan=plan, data=SimpleNamespace(splits={"validation": split(sources)}), say=print
    )
    baseline.measure_baseline(session)
    assert session.plan.base.audio_window == plan.base.audio_window, "trainings keep the shorter window"

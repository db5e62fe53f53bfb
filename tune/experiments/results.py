"""`results.json`, made from the log as often as one likes; and the base model's errors by clip."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from trainer.bounds import WEIGHT_OF
from trainer.files import write_whole
from trainer.scoring.alignment import ClipErrors
from trainer.scoring.objectives import CHRF_ERROR, WER
from trainer.training.checkpoints import UTTERANCES_FILE
from tune.experiments.checkpoint_files import CheckpointFiles
from tune.experiments.experiment import Experiment
from tune.experiments.folder import RESULTS_FILE, ExperimentFolder
from tune.experiments.object_stores.object_store import StorageError
from tune.experiments.state import SearchState
from tune.search.guards import describe_choice, guard_names
from tune.search.more_trials import MORE, MoreTrials, more_trials
from tune.search.records import Trial, listed, rank, trial_of
from tune.util.cloud_errors import cloud_errors
from tune.util.files import read_object

REPORT_FOLDER = "report"
"""What `tune-whisper report` writes; it goes with the experiment's run in MLflow."""
BASELINE_CLIPS_FILE = "baseline_utterances.json"
"""Errors, words and texts of each validation clip, of the base model before fine-tuning."""
TRACKING_FILE = "tracking/mlflow.json"
"""Ids of MLflow's runs."""
_BESIDE = {WER: ("cer",), CHRF_ERROR: ("chrf", "bleu")}
"""Rates that stand beside the objective."""


def results_of(folder: ExperimentFolder, state: SearchState) -> dict[str, Any]:
    """The content of `results.json`, as the log stands; trials that have not ended are called interrupted."""
    best, end = state.best(), state.end
    rates = _BESIDE[state.objective]
    runs = run_ids(folder.path)
    return {
        "experiment": folder.name,
        "metric": state.objective,
        "baseline": {name: state.base_rates.get(name) for name in (state.objective, *rates)},
        "trial_baseline": {name: state.trial_base_rates.get(name) for name in (state.objective, *rates)},
        "objective": state.prepared.train_config["objective"] if state.prepared else None,
        "sources": sources_of(state),
        "best": None if best is None else _best(folder, state, best),
        "trials": [_entry(folder, state, run, runs) for run in state.records.all()],
        "repeats": [_entry(folder, state, run, runs) for run in state.repeats.all()],
        "averages": [_entry(folder, state, run, runs) for run in state.averages.all()],
        "finalists": _finalists(state),
        "not_compared": state.compared.text or None,
        "guards": _guards(state),
        "test": _test(state),
        "more_trials": _more(folder, state),
        "ended_by": None if end is None else {"reason": end.reason, "text": end.text},
        "interrupted": state.something_is_left,
        "seconds": round(state.seconds, 3),
    }


def sources_of(state: SearchState, run: Trial | None = None) -> dict[str, dict[str, Any]]:
    """What is known of each of the data's sources, with the rates of a run; nothing for data without.

    `run` is the one to export where none is given.
    """
    best, held = run or state.best(), state.held_out
    tested = held if held and best and held.run == best.trial_id else None
    found = {}
    for name, facts in state.data.sources.items():
        rates = {
            "": best.best_sources if best else {},
            "baseline_": state.base_sources_for(best),
            "test_": tested.sources if tested else {},
            "baseline_test_": tested.baseline_sources if tested else {},
        }
        own = {
            f"{which}{rate}": by_source[name][rate]
            for which, by_source in rates.items()
            for rate in (state.objective, *_BESIDE[state.objective])
            if rate in by_source.get(name, {})
        }
        searched = best.config.get(f"{WEIGHT_OF}{name}") if best else None
        found[name] = {**facts, "weight": facts["weight"] if searched is None else searched, **own}
    return found


def source_table(
    state: SearchState, language: str, run: Trial | None = None
) -> tuple[list[str], list[list[str]]] | None:
    """The same for people: names of columns, and a row for each source; None for data without.

    `language` is that of sources without one of their own.
    """
    sources, rate = sources_of(state, run), state.objective
    names = {
        rate: "WER %",
        f"baseline_{rate}": "base %",
        f"test_{rate}": "test %",
        f"baseline_test_{rate}": "test, base %",
    }
    names = {rate: name for rate, name in names.items() if any(rate in facts for facts in sources.values())}
    rows = [
        [
            name,
            ", ".join(facts["language"]) or language,
            f"{facts['weight']:.3g}",
            *(f"{facts[rate]:.2f}" if rate in facts else "" for rate in names),
        ]
        for name, facts in sources.items()
    ]
    return (["source", "language", "weight", *names.values()], rows) if rows else None


def write_results(folder: ExperimentFolder, state: SearchState) -> None:
    """Write `results.json` anew; whoever reads it meanwhile sees the old one or the new one.

    Raises:
        OSError: it cannot be written.
    """
    text = json.dumps(results_of(folder, state), indent=2, allow_nan=False)
    write_whole(folder.path / RESULTS_FILE, text + "\n")


def succeeded(state: SearchState) -> bool:
    """Whether a training came to its end; or a search has something to export, and did not end by failures."""
    if state.options.kind == "training":
        return any(run.status == "completed" for run in state.records.all())
    return state.best() is not None and (state.end is None or state.end.reason != "failures")


def how_it_ended(state: SearchState) -> Literal["finished", "failed"] | None:
    """How an experiment ended; None where something is left, or it runs."""
    if state.something_is_left:
        return None
    return "finished" if succeeded(state) else "failed"


def _checkpoint(folder: ExperimentFolder, run: Trial) -> str | None:
    """Where people find it: in a folder, or at an address of the object store."""
    return f"{folder.address}/{run.checkpoint}" if run.has_weights else None


def _best(folder: ExperimentFolder, state: SearchState, best: Trial) -> dict[str, Any]:
    score, verdict, name = {}, state.verdict, state.objective
    if verdict is not None:
        won = verdict.score
        score = {f"mean_{name}": won.mean, "mean_interval": won.mean_interval}
    return {
        "trial_id": trial_of(best.trial_id),
        "run": best.trial_id,
        **score,
        name: best.best_value,
        **({"cer": best.best_cer} if name == WER else {}),
        "config": best.config,
        "checkpoint": _checkpoint(folder, best),
        "samples_seen": best.best_samples_seen,
    }


def _finalists(state: SearchState) -> dict[str, Any] | None:
    found = _plain(state.verdict)
    for score in found["scores"] if found else ():
        score[f"{state.objective}s"] = score.pop("values")
    return found


def _guards(state: SearchState) -> dict[str, Any] | None:
    """What each model that could be exported has lost on each guard; None where nothing was judged on any."""
    judged = state.guards_judged
    if judged is None:
        return None
    return {
        "run": judged.run,
        "kept": all(each.kept for each in judged.models[judged.run]),
        "models": [
            {"run": run, "guard_losses": [*map(_plain, found)]} for run, found in judged.models.items()
        ],
    }


def _more(folder: ExperimentFolder, state: SearchState) -> dict[str, Any] | None:
    more = more_of(Experiment(folder, state))
    if more is None:
        return None
    return {"trials": MORE, **dataclasses.asdict(more), "seconds": round(more.seconds, 3)}


def _test(state: SearchState) -> dict[str, Any] | None:
    found = state.tested
    if found is None:
        return None
    names = (state.objective, *_BESIDE[state.objective])
    return {
        **{name: found.rates[name] for name in names if name in found.rates},
        "clips": int(found.rates["clips"]),
        **{f"baseline_{name}": found.baseline[name] for name in names if name in found.baseline},
    }


def _entry(
    folder: ExperimentFolder, state: SearchState, run: Trial, runs: Mapping[str, str]
) -> dict[str, Any]:
    name = state.objective
    return {
        "trial_id": run.trial_id,
        "status": "interrupted" if run.status == "running" else run.status,
        "config": run.config,
        **({"members": list(run.members)} if run.members else {}),
        "effective_batch_size": run.effective_batch,
        name: run.value,
        f"best_{name}": run.best_value,
        **({"best_cer": run.best_cer} if name == WER else {}),
        "best_samples_seen": run.best_samples_seen,
        **({"sources": run.best_sources} if run.best_sources else {}),
        "samples_seen": run.samples_seen,
        "seconds": round(run.seconds, 3),
        "samples_per_second": run.samples_per_second,
        "mlflow_run_id": runs.get(run.trial_id),
        "checkpoint": _checkpoint(folder, run),
        "evaluations": [{"samples_seen": seen, name: value} for seen, value in run.evaluations],
        "stop": _plain(run.stop),
        "error": run.error,
    }


def _plain(found: Any) -> dict[str, Any] | None:
    return dataclasses.asdict(found) if found else None


def run_ids(folder: Path) -> dict[str, str]:
    """MLflow's runs by trial, repeat and average, as far as it has them."""
    return dict(read_object(folder / TRACKING_FILE).get("run_ids") or {})


def baseline_clips(folder: Path) -> ClipErrors | None:
    """The base model's, of the experiment in a folder; None where they were not kept."""
    path = folder / BASELINE_CLIPS_FILE
    return parse_clips(path.read_bytes()) if path.is_file() else None


def clips_of(files: CheckpointFiles, checkpoint: str | None) -> ClipErrors | None:
    """The errors of each validation clip that a checkpoint has; None where they are gone or cannot be read."""
    try:
        return parse_clips(files.read(checkpoint, UTTERANCES_FILE)) if checkpoint else None
    except cloud_errors(OSError, StorageError):
        return None


def parse_clips(content: bytes) -> ClipErrors | None:
    """The errors of each clip that a file holds; None where it is damaged."""
    import numpy as np

    try:
        saved = json.loads(content)
        errors, words = (np.asarray(saved[name], float) for name in ("word_errors", "words"))
        texts = [(str(name), str(said), str(written)) for name, said, written in saved.get("texts", ())]
        found = ClipErrors(errors, words, int(saved.get("worst_of", 1)), texts)
    except (ValueError, KeyError, TypeError):
        return None
    usable = found.words.shape == found.word_errors.shape and found.words.sum() > 0
    return found if usable else None


def no_gain_line(state: SearchState) -> str | None:
    """The first line about a model that is no better than the base model; else None."""
    value, base = state.value, state.comparable_base
    if value is None or value < base:
        return None
    what = "the mean of the winner's seeds" if state.verdict is not None else "the best model"
    if state.passed_over:
        what = "the model chosen by the guards"
    return (
        f"no gain: {what} (WER {value:.2f} %) does not beat the base model ({base:.2f} %); keep the base model, "
        "or try lower learning rates, LoRA (--space lora), more epochs or more data"
    )


def more_of(experiment: Experiment) -> MoreTrials | None:
    """What more trials would gain.

    None before the search has come to its end, and where what is known does not tell: after a warm start, where the
    guards pass over the winner, where the lowest WER lies outside the space, which was changed, and where the space has
    not so many other points.
    """
    state = experiment.state
    if how_it_ended(state) != "finished" or state.passed_over or experiment.settings.warm_starts:
        return None
    space, shared = experiment.space, experiment.shared
    if space is None:
        return None
    trials = [trial for trial in state.records.all() if space.point_of(trial.config, shared) is not None]
    best = state.records.best()
    if best is None or space.point_of(best.config, shared) is None:
        return None
    wanted = len(trials) + MORE
    points = sum(1 for _ in itertools.islice(space.all_points(), wanted))  # 0 where there are real numbers
    return more_trials(trials) if points in (0, wanted) else None


def average_line(state: SearchState) -> str:
    """What the last mean of the winner's repeats came to, in one line; empty where none was measured."""
    winner = state.compared.verdict.winner if state.compared.verdict else None
    found = [run for run in state.averages.all() if trial_of(run.trial_id) == winner and run.finished]
    if not found:
        return ""
    average, best = found[-1], min((state.run(name) for name in found[-1].members), key=rank)
    text = f"{average.trial_id}, the mean of the weights of {listed(average.members)}, has"
    text += f" WER {average.best_value:.2f} %"
    if rank(average) <= rank(best):
        return f"{text}, no more than the best of them ({best.best_value:.2f} %)"
    return f"{text}; {best.trial_id} is better with {best.best_value:.2f} %"


def guards_line(state: SearchState) -> str:
    """What the guards came to, in one line; empty where nothing was judged on them."""
    judged = state.guards_judged
    if judged is None:
        return ""
    return describe_choice(judged.run, judged.models, guard_names(state.options.guard))

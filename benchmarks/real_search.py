"""Searches with a real Whisper on real speech: what is exported beside the base model, on test clips.

    python benchmarks/real_search.py --model FOLDER --german FOLDER --cherokee FOLDER [--minutes 100]

`tune-whisper --space lr_batch --trials 8` at its defaults (see `SETTINGS`): three seeds on the German clips and on
those spoiled to a bad telephone line, one on Cherokee (see `real_data.py`). Goes on where it was: an interrupted
search is resumed, and what `real_searches.jsonl` has is not measured again; with `--minutes` nothing begins after
that time.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import real
from tables import markdown

from trainer.scoring.intervals import compare

RESULTS = Path(__file__).with_name("real_searches.jsonl")
TRIALS = 8
SEARCHES = [
    ("german", 0),
    ("telephone", 0),
    ("cherokee", 0),
    ("german", 1),
    ("telephone", 1),
    ("german", 2),
    ("telephone", 2),
]
"""Data and seed."""
SETTINGS = {"cherokee": ["--set", "audio_window=10"]}
"""What is not at its default: in a short window whisper-base repeats itself on Cherokee, so that a search would take
the whole one, in twice the time; once it is trained it does not (`real.py`)."""


def main() -> None:
    """Run what is missing, then print the table."""
    arguments = real.input_parser(__doc__).parse_args()
    work, tables = arguments.work.absolute(), real.make_tables(arguments)
    began = time.monotonic()
    for data, seed in SEARCHES:
        if data not in tables or (data, seed) in read_results():
            continue
        if time.monotonic() - began > 60 * arguments.minutes:
            print("the time is over")
            break
        result = search(data, seed, arguments.model.absolute(), tables[data], work)
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"data": data, "seed": seed, **result}, ensure_ascii=False) + "\n")
    print_table(read_results())


def search(data: str, seed: int, model: Path, table: Path, work: Path) -> dict[str, Any]:
    """One search to its end, its export, and what that and the base model come to on the test clips."""
    from trainer.data.prepared import prepare

    name, storage = f"{data}-{seed}", ["--storage", str(work / "experiments")]
    folder, exported = work / "experiments" / name, work / f"export-{name}"
    known = folder / "results.json"  # one that was interrupted has results too
    if not known.is_file() or json.loads(known.read_text(encoding="utf-8"))["interrupted"]:
        begun = (folder / "events.jsonl").is_file()
        asked = ["--space", "lr_batch", "--trials", str(TRIALS), "--experiment", name, "--seed", str(seed)]
        asked += ["--model", str(model), "--data", str(table), "--language", real.LANGUAGES[data]]
        asked += ["--epochs", str(real.EPOCHS[data]), *SETTINGS.get(data, [])]
        # One trial at a time on both cores: two of whisper-base take more than 24 GB.
        asked += ["--max-concurrent", "1", "--cpus-per-trial", str(os.cpu_count())]
        run(*(["--resume", name] if begun else asked), *storage)
    if not exported.is_dir():
        run("export", name, "--output", str(exported), *storage)
    results = json.loads(known.read_text(encoding="utf-8"))
    base = real.base_config(real.Run(data), model, table, work)
    prepared = prepare(base)
    return {
        "seconds": results["seconds"],
        "baseline": results["baseline"],
        "best": {key: value for key, value in results["best"].items() if key != "checkpoint"},
        "trials": [
            {key: trial[key] for key in ("trial_id", "status", "config", "evaluations")}
            for trial in results["trials"]
        ],
        "untouched": real.rates(base, prepared),
        "exported": real.rates(base.replace(model=str(exported)), prepared),
        **real.circumstances(),
    }


def run(*words: str) -> None:
    """A command of tune-whisper, shown as it runs."""
    print(f"$ tune-whisper {shlex.join(words)}", flush=True)
    subprocess.run([sys.executable, "-m", "tune", *words], check=True, cwd=real.ROOT)


def read_results() -> dict[tuple[str, int], dict[str, Any]]:
    """What was measured before, by data and seed."""
    if not RESULTS.is_file():
        return {}
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {(row["data"], row["seed"]): row for row in rows}


def print_table(results: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Markdown: WER and CER on the test clips; the mean of the seeds beside other models, paired by clip."""
    rows: list[dict[str, object]] = []
    for (data, seed), row in results.items():
        rates = [
            f"{part['wer']:.2f}, {part['cer']:.2f}"
            for part in (row["untouched"]["test"], row["exported"]["test"])
        ]
        settings = row["best"]["config"].values()
        rows.append(
            {
                "data": data,
                "seed": seed,
                "WER, CER before fine-tuning": rates[0],
                "exported WER, CER": rates[1],
                "settings": ", ".join(
                    f"{value:.3g}" if isinstance(value, float) else str(value) for value in settings
                ),
                "minutes": f"{row['seconds'] / 60:.0f}",
            }
        )
    print(markdown(rows))
    trained = real.read_results()
    for data in dict.fromkeys(data for data, _ in results):
        rows = [row for (which, _), row in results.items() if which == data]
        exported = [row["exported"]["test"] for row in rows]
        print(f"{data}: test WER {mean_of(exported, 'wer'):.2f} % (mean of {len(rows)} seeds)")
        rate = rows[0]["trials"][0]["config"]["learning_rate"]  # the first trial has the usual settings
        usual = [found["test"] for run, found in trained.items() if run == real.Run(data, rate, run.seed)]
        peers = {"the base model": [rows[0]["untouched"]["test"]], "the usual settings": usual}
        words = np.asarray(exported[0]["words"], float)
        for name, others in peers.items():
            if others:
                found = compare(mean_of(exported, "errors"), mean_of(others, "errors"), words)
                low, high = found.interval
                print(
                    f"  {name} (mean of {len(others)}): {mean_of(others, 'wer'):.2f} %, difference "
                    f"{found.difference:.2f} points, 95 % interval by the clips alone {low:.2f} to {high:.2f}"
                )


def mean_of(trainings: list[dict[str, Any]], key: str) -> Any:
    """Of a figure, or of each clip's figures."""
    return np.mean([found[key] for found in trainings], axis=0)


if __name__ == "__main__":
    main()

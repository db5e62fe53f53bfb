"""Fine-tunings of a real Whisper on real speech: the tables of labels, windows, rates and timestamps.

    python benchmarks/real.py --model FOLDER --german FOLDER --cherokee FOLDER [--parts labels rates] [--minutes 100]

Trains what `real_results.jsonl` has not yet, one training after the other, and prints the tables of all that it has;
with `--minutes` no training begins after that time. A training is measured by its last weights, with the model's
whole window. `real_data.py` says what the data is. whisper-base on two CPU cores takes about ten hours for everything.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import itertools
import json
import os
import platform
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import real_data
from tables import markdown

from trainer.config import TrainConfig

os.environ.setdefault("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).with_name("real_results.jsonl")
LANGUAGES = {"german": "de", "short": "de", "telephone": "de", "cherokee": "haw"}
EPOCHS = {"german": 3, "short": 3, "telephone": 3, "cherokee": 4}
RATES = (1e-5, 2.5e-5, 5e-5, 1e-4, 2e-4)
AUTO, WHOLE = None, 30.0
"""Windows in seconds: `auto` is 13.6 s for the German clips, 10.1 s for the Cherokee ones."""
UNTOUCHED = (30.0, 20.0, 15.0, 10.0, 7.5, 6.0)
"""Windows in which the base model is measured, on German clips of at most 5.5 s."""


@dataclasses.dataclass(frozen=True)
class Run:
    """One training; without a rate the model as it is, in the whole window where none is given."""

    data: str
    rate: float | None = None
    seed: int = 0
    window: float | None = AUTO
    leading_space: bool = True
    timestamp_share: float = 0.0


PARTS = {
    "labels": [Run("german", 1e-5, seed, AUTO, space) for seed in range(5) for space in (True, False)],
    "untouched": [Run("short", None, 0, window) for window in UNTOUCHED],
    "rates": [Run(data, rate) for data in ("german", "cherokee") for rate in (None, *RATES)],
    "windows": [
        *(Run("german", 1e-5, seed, window) for seed in range(3) for window in (AUTO, WHOLE)),
        *(Run("cherokee", 1e-4, 0, window) for window in (AUTO, WHOLE)),
    ],
    # Of the two best rates by the table before.
    "second-seeds": [
        *(Run("german", rate, 1) for rate in (1e-5, 2.5e-5)),
        *(Run("cherokee", rate, 1) for rate in (5e-5, 1e-4)),
    ],
    "timestamps": [
        *(Run("cherokee", 1e-4, timestamp_share=share) for share in (0.0, 0.2)),
        *(Run("german", 1e-5, seed, timestamp_share=share) for seed in range(3) for share in (0.0, 0.2)),
    ],
    "telephone": [Run("telephone", rate) for rate in (None, 1e-5, 5e-5)],
}
"""The trainings of each part, in the order in which they are made."""


def main() -> None:
    """Make what is missing, then print the tables."""
    parser = input_parser(__doc__)
    parser.add_argument("--parts", nargs="*", default=list(PARTS), choices=PARTS)
    arguments = parser.parse_args()
    tables = make_tables(arguments)
    began = time.monotonic()
    known = read_results()
    wanted = dict.fromkeys(run for part in arguments.parts for run in PARTS[part] if run.data in tables)
    left = [run for run in wanted if run not in known]
    for number, run in enumerate(left):
        if time.monotonic() - began > 60 * arguments.minutes:
            print(f"{len(left) - number} of {len(wanted)} trainings are left; the time is over")
            break
        print(f"{datetime.datetime.now():%H:%M:%S} {number + 1}/{len(left)} {run}", flush=True)
        result = measure(run, base_config(run, arguments.model, tables[run.data], arguments.work))
        with RESULTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"run": dataclasses.asdict(run), **result}, ensure_ascii=False) + "\n")
    print_tables(read_results())


def input_parser(text: str) -> argparse.ArgumentParser:
    """Arguments that name the model and the speech; `text` begins with what the program does."""
    parser = argparse.ArgumentParser(description=text.split("\n", maxsplit=1)[0])
    parser.add_argument("--model", type=Path, required=True, help="folder of whisper-base")
    parser.add_argument("--german", type=Path, required=True, help="folder with metadata.csv")
    parser.add_argument("--cherokee", type=Path, help="clone of cherokee-audio-data")
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "real", help="tables, features, experiments"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="nothing begins after them")
    return parser


def make_tables(arguments: argparse.Namespace) -> dict[str, Path]:
    """The tables of clips by their names, made where they are not there yet."""
    work = arguments.work.absolute()
    tables = {
        "german": real_data.make_german(arguments.german, work / "german.csv"),
        "short": real_data.make_german(arguments.german, work / "short.csv", real_data.SHORT_SECONDS),
        "telephone": real_data.make_telephone(arguments.german, work),
    }
    if arguments.cherokee:
        tables["cherokee"] = real_data.make_cherokee(arguments.cherokee, work)
    return tables


def base_config(run: Run, model: Path, table: Path, work: Path) -> TrainConfig:
    """The settings of a training, which are the project's own where nothing is said."""
    return TrainConfig(
        model=str(model),
        language=LANGUAGES[run.data],
        data=str(table),
        cache_dir=str(work / "features"),
        epochs=EPOCHS[run.data],
        evaluations=1,
        learning_rate=run.rate,
        seed=run.seed,
        audio_window=run.window,
        leading_space=run.leading_space,
        timestamp_share=run.timestamp_share,
        log_every_seconds=60.0,
    )


def measure(run: Run, config: TrainConfig) -> dict[str, Any]:
    """What a training comes to: the rates on both splits, by clip too; its speed; and the model's timestamps."""
    from trainer.data.prepared import prepare
    from trainer.train import train

    data = prepare(config)
    if run.rate is None and run.window is not None:
        config = config.replace(full_window_evaluation=False)
        return {**rates(config, data, as_in_training=True), **circumstances()}
    if run.rate is None:
        return {**rates(config, data), "timestamps": timestamps(config, data), **circumstances()}
    found: dict[str, Any] = {}

    def report(metrics: Any, checkpoint: Path | None) -> None:
        if checkpoint is None:
            print(f"  {metrics['samples_seen']:.0f} samples, loss {metrics['loss']:.3f}", flush=True)
            return
        own = config.replace(model=str(checkpoint))
        found.update(rates(own, data))
        found["timestamps"] = timestamps(own, data)
        found["samples"] = metrics["samples_seen"]
        found["seconds_a_sample"] = metrics["train_seconds"] / metrics["train_samples"]

    # Its own evaluation is not used: one clip is the least.
    few = {**data.splits, "validation": data.splits["validation"].only([0])}
    train(config, dataclasses.replace(data, splits=few), report)
    return {**found, **circumstances()}


def rates(config: TrainConfig, data: Any, *, as_in_training: bool = False) -> dict[str, Any]:
    """Of validation and test split: WER and CER, errors and words by clip, how many clips' first word is wrong."""
    from trainer.model.processor import load_processor
    from trainer.scoring.normalizers import make_normalizer
    from trainer.train import evaluate

    normalize = make_normalizer(config, load_processor(config).tokenizer)
    found: dict[str, Any] = {}
    for split in ("validation", "test"):
        one = evaluate(config, data, split, as_in_training=as_in_training)
        texts = [normalize(data.splits[split].text(clip)) for clip in range(int(one.rates["clips"]))]
        written = list(map(normalize, one.predictions))
        firsts = [(text.split()[:1], other.split()[:1]) for text, other in zip(texts, written, strict=True)]
        assert one.utterances is not None
        found[split] = {
            **{name: one.rates[name] for name in ("wer", "cer", "loss")},
            "seconds": one.seconds,
            "tokens": sum(one.tokens),
            "wrong_first_words": sum(text != other for text, other in firsts),
            "errors": list(map(int, one.utterances.word_errors)),
            "words": list(map(int, one.utterances.words)),
        }
    return found


def timestamps(config: TrainConfig, data: Any) -> dict[str, Any]:
    """Segments of a minute of joined test clips, and how many of them have both times."""
    import torch
    from transformers import WhisperForConditionalGeneration, WhisperProcessor

    from trainer.data.audio import read_audio

    split, parts, seconds = data.splits["test"], [], 0.0
    for clip in range(len(split)):
        parts.append(read_audio(Path(config.data).parent / split.name(clip)))
        seconds += split.seconds(clip)
        if seconds >= 60:
            break
    processor = WhisperProcessor.from_pretrained(config.model)
    where = "cuda" if torch.cuda.is_available() else "cpu"
    model = WhisperForConditionalGeneration.from_pretrained(config.model).to(where)
    inputs = processor(
        np.concatenate(parts),
        sampling_rate=real_data.RATE,
        return_tensors="pt",
        truncation=False,
        padding="longest",
        return_attention_mask=True,
    ).to(where)
    with torch.no_grad():
        out = model.generate(
            **inputs,
            language=config.language,
            task="transcribe",
            return_timestamps=True,
            return_segments=True,
            max_new_tokens=200,
        )
    first = processor.tokenizer.convert_tokens_to_ids("<|0.00|>")
    segments = [segment["tokens"].tolist() for segment in out["segments"][0]]
    both = sum(tokens[0] >= first and tokens[-1] >= first for tokens in segments if tokens)
    return {"segments": len(segments), "with_both_times": both, "seconds": seconds}


def circumstances() -> dict[str, Any]:
    """When and with what it was measured."""
    import torch
    import transformers

    return {
        "date": f"{datetime.date.today()}",
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, {torch.get_num_threads()} threads",
        "device": device(),
    }


def device() -> str:
    """`cpu`, or the GPU's name."""
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else "cpu"


def read_results() -> dict[Run, dict[str, Any]]:
    """What was measured on this device before."""
    if not RESULTS.is_file():
        return {}
    rows = map(json.loads, RESULTS.read_text(encoding="utf-8").splitlines())
    return {Run(**row["run"]): row for row in rows if row.get("device", "cpu") == device()}


def print_tables(results: dict[Run, dict[str, Any]]) -> None:
    """Markdown: every training; then what the first space and the window come to."""
    rows = []
    for run in sorted(results, key=lambda run: (run.data, run.rate or 0, str(run))):
        row, trained = results[run], run.rate is not None
        both, times = [row["validation"], row["test"]], row.get("timestamps", "")
        known, tested = (f"{part['wer']:.2f}, {part['cer']:.2f}" for part in both)
        rows.append(
            {
                "data": run.data,
                "rate": f"{run.rate:g}" if trained else "before fine-tuning",
                "window": f"{run.window:g}" if run.window else "auto" if trained else "",
                "seed": run.seed if trained else "",
                "space": ("yes" if run.leading_space else "no") if trained else "",
                "times": f"{run.timestamp_share:g}" if trained else "",
                "samples": f"{row.get('samples', 0):.0f}",
                "s a sample": f"{row['seconds_a_sample']:.2f}" if trained else "",
                "validation WER, CER": known,
                "test WER, CER": tested,
                "wrong first words": sum(part["wrong_first_words"] for part in both),
                "segments with both times": times and f"{times['with_both_times']} of {times['segments']}",
            }
        )
    print(f"\n{markdown(rows)}\n", *comparisons(results), sep="\n")


def comparisons(results: dict[Run, dict[str, Any]]) -> Iterator[str]:
    """What the first space and the window come to, each seed with it beside the same seed without it."""
    changes: dict[str, dict[str, Any]] = {"labels": {"leading_space": False}, "windows": {"window": WHOLE}}
    for (part, change), data in itertools.product(changes.items(), ("german", "cherokee")):
        pairs = [(run, dataclasses.replace(run, **change)) for run in PARTS[part] if run.data == data]
        known = [(results[a], results[b]) for a, b in pairs if a != b and a in results and b in results]
        if not known:
            continue
        usual, changed = (
            np.array([_both_splits(row) for row in rows]).T for rows in zip(*known, strict=True)
        )
        for name, ours, other in zip(("WER %", "wrong first words %"), usual, changed, strict=True):
            yield (
                f"{data}, {len(known)} seeds, {name}: usual {_spread(ours)}, {change} {_spread(other)}, "
                f"difference {_spread(ours - other)}"
            )
        ratio = statistics.median(a["seconds_a_sample"] / b["seconds_a_sample"] for a, b in known)
        yield f"time of a step, usual / {change}: {ratio:.2f}"


def _both_splits(row: dict[str, Any]) -> tuple[float, float]:
    """WER of validation and test clips together, and wrong first words in percent of the clips."""
    parts = [row["validation"], row["test"]]
    errors, words = (np.concatenate([part[name] for part in parts]) for name in ("errors", "words"))
    wrong = sum(part["wrong_first_words"] for part in parts)
    return 100 * errors.sum() / words.sum(), 100 * wrong / len(words)


def _spread(values: np.ndarray) -> str:
    return f"{values.mean():.2f} ({values.min():.2f} to {values.max():.2f})"


if __name__ == "__main__":
    main()

"""What averaging the trainings of a final round gains on the test split, over several real final rounds.

Each round trains the finalists of the demo anew, with seeds of its own, through `trainer.train`, and averages them
by the decisions of a search: `tune.search.soup`. All is measured with the whole window. What was done is in
`FOLDER/rounds.json` after every round, and a further call goes on behind it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer.config import TrainConfig
from trainer.data.prepared import PreparedData, prepare
from trainer.model.averaging import load_mean
from trainer.scoring.intervals import difference_interval
from trainer.train import Evaluation, evaluate, train
from tune.search.finalists import ClipErrors
from tune.search.soup import Candidate, greedy_soup, judge_soup

RATES = (1e-3, 7e-4)
"""Learning rates of the two finalists, around the demo's own: the first is taken to have won."""


@dataclasses.dataclass(frozen=True)
class Measured:
    """A model on validation and test: WER in percent, and word errors by clip."""

    wer: dict[str, float]
    errors: dict[str, list[float]]
    words: dict[str, list[float]]

    def candidate(self, name: str) -> Candidate:
        """As the decision takes it."""
        split = "validation"
        clips = ClipErrors(np.array(self.errors[split], float), np.array(self.words[split], float))
        return Candidate(name, self.wer[split], clips)


def measured(config: TrainConfig, folder: Path, data: PreparedData) -> Measured:
    """A model folder on both splits."""
    found: dict[str, Evaluation] = {
        split: evaluate(config.replace(model=str(folder)), split, data=data)
        for split in ("validation", "test")
    }
    errors = {split: each.utterances for split, each in found.items() if each.utterances is not None}
    return Measured(
        {split: each.wer for split, each in found.items()},
        {split: list(map(float, each.word_errors)) for split, each in errors.items()},
        {split: list(map(float, each.words)) for split, each in errors.items()},
    )


def one_round(
    number: int, repeats: int, config: TrainConfig, data: PreparedData, folder: Path
) -> dict[str, Any]:
    """Train, average and judge one final round; its seeds are those of no other."""
    shutil.rmtree(folder, ignore_errors=True)  # of a call that was ended
    folders: dict[str, Path] = {}
    found: dict[str, Measured] = {}
    for place, rate in enumerate(RATES, 1):
        for repeat in range(1, repeats + 1):
            name, seed = f"00{place}-r{repeat}", 1000 * (number + 1) + repeat
            own = config.replace(learning_rate=rate, seed=seed)
            result = train(own, data=data, output_dir=folder / "scratch")
            assert result.checkpoint is not None
            folders[name] = folder / name
            shutil.move(result.checkpoint, folders[name])
            shutil.rmtree(folder / "scratch")
            found[name] = measured(own, folders[name], data)
            print(f"round {number}: {name}, seed {seed}: {found[name].wer}", flush=True)
    wer = {name: each.wer["validation"] for name, each in found.items()}
    means = {
        trial: statistics.fmean(wer[name] for name in wer if name.startswith(trial))
        for trial in ("001", "002")
    }
    winner = min(means, key=means.__getitem__)
    runs = {
        name: wer[name] for name in sorted(wer, key=lambda name: (not name.startswith(winner), wer[name]))
    }
    averages: dict[frozenset[str], Measured] = {}
    while (soup := greedy_soup(runs, {key: each.wer["validation"] for key, each in averages.items()})).next:
        place = folder / "average"
        mean, processor = load_mean(config, [(str(folders[name]), 1.0) for name in soup.next])
        mean.save_pretrained(str(place))
        processor.save_pretrained(place)
        averages[frozenset(soup.next)] = measured(config, place, data)
        shutil.rmtree(place)
    best = next(iter(runs))
    row: dict[str, Any] = {
        "round": number,
        "winner": winner,
        "best": best,
        "repeats": {name: dataclasses.asdict(each) for name, each in found.items()},
        "members": list(soup.members),
        "soup": dataclasses.asdict(averages.get(frozenset(soup.members), found[best])),
        "chosen": False,
    }
    if len(soup.members) > 1:
        average = averages[frozenset(soup.members)]
        verdict = judge_soup(average.candidate("average"), soup.members, found[best].candidate(best))
        row |= {"verdict": dataclasses.asdict(verdict), "chosen": verdict.better}
    shutil.rmtree(folder)
    return row


def mean_interval(values: Sequence[float]) -> str:
    """Mean of the rounds, with its 95 % interval by Student's t."""
    from scipy.special import stdtrit  # type: ignore[import-untyped]

    mean = statistics.fmean(values)
    if len(values) < 2:
        return f"{mean:.2f}"
    reach = float(stdtrit(len(values) - 1, 0.975)) * statistics.stdev(values) / math.sqrt(len(values))
    return f"{mean:.2f} ({mean - reach:.2f} to {mean + reach:.2f})"


def table(rounds: Sequence[dict[str, Any]]) -> str:
    """Markdown of all rounds."""
    lines = ["| | WER, validation | WER, test |", "| --- | ---: | ---: |"]
    splits = ("validation", "test")

    def of(model: dict[str, Any], split: str) -> float:
        return float(model["wer"][split])

    def winners(row: dict[str, Any]) -> list[dict[str, Any]]:
        return [each for name, each in row["repeats"].items() if name.startswith(row["winner"])]

    shown = {
        "mean repeat of the winner": lambda row, split: statistics.fmean(
            of(each, split) for each in winners(row)
        ),
        "best repeat of the winner": lambda row, split: of(row["repeats"][row["best"]], split),
        "greedy soup": lambda row, split: of(row["soup"], split),
        "what is exported": lambda row, split: of(
            row["soup"] if row["chosen"] else row["repeats"][row["best"]], split
        ),
    }
    for name, wer in shown.items():
        cells = " | ".join(mean_interval([wer(row, split) for row in rounds]) for split in splits)
        lines.append(f"| {name} | {cells} |")
    gains = [shown["best repeat of the winner"](row, "test") - of(row["soup"], "test") for row in rounds]
    lines += [
        "",
        f"Best repeat minus soup on test, each round: {', '.join(f'{gain:+.2f}' for gain in gains)};",
    ]
    lines.append(f"mean by rounds {mean_interval(gains)};")
    errors = [
        np.array(row["repeats"][row["best"]]["errors"]["test"]) - np.array(row["soup"]["errors"]["test"])
        for row in rounds
    ]
    interval = difference_interval(np.mean(errors, axis=0), np.array(rounds[0]["soup"]["words"]["test"]))
    if interval is not None:
        lines.append(
            f"by the clips, each with its mean over the rounds, {interval[0]:+.2f} to {interval[1]:+.2f}."
        )
    chosen = [gain for row, gain in zip(rounds, gains, strict=True) if row["chosen"]]
    right = sum(gain > 0 for gain in chosen)
    lines.append(f"Chosen in {len(chosen)} of {len(rounds)} rounds, better on test in {right} of these.")
    sizes = ", ".join(str(len(row["members"])) for row in rounds)
    lines.append(f"Members of the soups: {sizes} of {len(rounds[0]['repeats'])}.")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=2, help="of each of the two finalists")
    parser.add_argument("--epochs", type=float, default=4.0)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    folder = arguments.folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    config = TrainConfig(
        cache_dir=str(folder / "cache"), epochs=arguments.epochs, evaluations=1, train_batch_size=8
    )
    data, path = prepare(config), folder / "rounds.json"
    rounds: list[dict[str, Any]] = json.loads(path.read_text()) if path.exists() else []
    for number in range(len(rounds), arguments.rounds):
        rounds.append(one_round(number, arguments.repeats, config, data, folder / "round"))
        path.write_text(json.dumps(rounds) + "\n")
        print(table(rounds), flush=True)


if __name__ == "__main__":
    main()

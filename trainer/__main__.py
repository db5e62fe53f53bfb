"""`python -m trainer config.yaml`: one fine-tuning by itself, without Ray, with the WER before and after."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.command import run_command
from trainer.errors import ConfigError

if TYPE_CHECKING:
    from trainer.config import TrainConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the YAML file says; exit code 2 and one line for a mistake in it, 130 for Ctrl-C."""
    return run_command(lambda: _train(argv))


def read_config(path: Path) -> TrainConfig:
    """The settings of a YAML file.

    Raises:
        ConfigError: the file is missing, no YAML mapping, or has a wrong setting.
    """
    import yaml

    from trainer.config import TrainConfig
    from trainer.yaml_nodes import Problems, compose, items, scalar

    problems = Problems()
    try:
        root = compose(path.read_text(encoding="utf-8"), problems, empty="give settings, KEY: VALUE a line")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if isinstance(root, yaml.MappingNode):
        # Values stay text, as written: YAML would read the language `no` as false and `1e-5` as text anyway.
        values = {key: scalar(node, as_text=True) for key, _, node in items(root, problems)}
    elif root is not None:
        problems.add(root, "must hold settings, KEY: VALUE a line")
    lines = [f"line {line}: {text}" for line, text in problems.found]
    if not lines:
        try:
            return TrainConfig.from_dict(values)
        except ConfigError as error:
            lines = str(error).splitlines()
    raise ConfigError("\n".join(f"{path}: {line}" for line in lines))


def _train(argv: Sequence[str] | None) -> int:
    from trainer.config import TrainConfig, field_docs

    usual = {name: "null" if value is None else value for name, value in vars(TrainConfig).items()}
    settings = [f"  {name}: {usual[name]}\n      {text}" for name, text in field_docs(TrainConfig).items()]
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Fine-tune Whisper once; prints the WER before and after.",
        epilog="settings of the YAML file:\n" + "\n".join(settings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "config", metavar="CONFIG", type=Path, help="YAML file of settings, KEY: VALUE a line"
    )
    config = read_config(parser.parse_args(argv).config)
    output = Path(config.output_dir)
    if output.exists():
        raise ConfigError(
            f"output_dir={config.output_dir!r}: is there already; choose another folder or remove it"
        )
    from trainer.data.prepared import prepare
    from trainer.optimizers import notes_on_methods
    from trainer.scoring.objectives import describe_rates
    from trainer.train import evaluate, train
    from trainer.training.taught import allowed_note

    data = prepare(config, waveforms=config.augments)
    for note in filter(None, [*data.notes, allowed_note(config, data)]):
        print(f"note: {note}")
    for line in notes_on_methods(config.to_dict(), TrainConfig().to_dict(), [config.method]):
        print(line)
    before = evaluate(config, data=data)
    print(f"before: {before.describe()} on {before.rates['clips']} validation clips", flush=True)
    result = train(config, _print_report, data=data, output_dir=output)
    data.write_dropped(output / "dropped_clips.jsonl")
    if result.diverged or result.best is None:
        print(f"diverged after {result.samples_seen:,} samples; lower the learning rate")
        return 1
    print(f"after:  {describe_rates(result.best)} (best checkpoint: {result.checkpoint})")
    return 0


def _print_report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    from trainer.scoring.objectives import describe_rates

    told = f"loss {metrics.get('loss')}, learning rate {metrics.get('learning_rate')}"
    if checkpoint_dir is not None:
        told = describe_rates(metrics)
    print(f"step {metrics['step']:.0f}, epoch {metrics['epoch']:.2f}: {told}", flush=True)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m trainer config.yaml`: one fine-tuning without Ray, with the WER before and after; --help lists all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from trainer.command import run_command
from trainer.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the YAML file says; exit code 2 and one line for a mistake in it, 130 for Ctrl-C."""
    return run_command(lambda: _train(argv))


def _train(argv: Sequence[str] | None) -> int:
    from trainer.config import TrainConfig, field_docs
    from trainer.config_file import read_config_file

    usual = {name: "null" if value is None else value for name, value in vars(TrainConfig).items()}
    settings = [f"  {name}: {usual[name]}\n      {text}" for name, text in field_docs(TrainConfig).items()]
    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Fine-tune Whisper once; prints the WER before and after.",
        epilog="settings of the YAML file:\n" + "\n".join(settings),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file with one KEY: VALUE per line")
    config = TrainConfig.from_dict(read_config_file(parser.parse_args(argv).config))
    output = Path(config.output_dir).expanduser()
    if output.exists():
        raise ConfigError(f"output_dir={config.output_dir!r}: exists already; choose another folder")
    from trainer.data.prepared import prepare
    from trainer.model.rates import default_learning_rate
    from trainer.scoring.objectives import describe_rates, objective_value
    from trainer.train import evaluate, train
    from trainer.training.suppressed import allowed_tokens_note

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        text = f"loss {metrics.get('loss')}" if checkpoint_dir is None else describe_rates(metrics)
        print(f"step {metrics['step']:.0f}, epoch {metrics['epoch']:.2f}: {text}", flush=True)

    data = prepare(config, waveforms=config.augments)
    for note in filter(None, [*data.notes, allowed_tokens_note(config, data)]):
        print(f"note: {note}")
    base = evaluate(config, data)
    print(f"before: {base.describe()}", flush=True)
    if config.learning_rate is None:
        config = config.replace(learning_rate=default_learning_rate(config, objective_value(base.rates)))
    result = train(config, data, report, output_dir=output)
    if result.diverged or result.best is None:
        print(f"diverged after {result.samples_seen:,} samples; lower the learning rate")
        return 1
    print(f"after:  {describe_rates(result.best)} (best checkpoint: {result.checkpoint})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

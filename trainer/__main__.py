"""`python -m trainer config.yaml`: one fine-tuning without Ray, with the WER before and after; --help lists all."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trainer.command import run_command
from trainer.errors import ConfigError


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the YAML file says; exit code 2 and one line for a mistake in it, 130 for Ctrl-C."""
    return run_command(lambda: _train(argv))


def read_config_file(path: Path) -> dict[str, Any]:
    """The settings that a YAML file gives, checked.

    Raises:
        ConfigError: the file is missing or no YAML mapping, or has wrong settings; a line for each mistake.
    """
    import yaml

    from trainer.config import TrainConfig
    from trainer.yaml_nodes import Problems, compose, items, scalar

    problems, values = Problems(), dict[str, Any]()
    try:
        root = compose(path.read_text(encoding="utf-8"), problems, empty="give settings, KEY: VALUE a line")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: cannot be read: {error}") from error
    if isinstance(root, yaml.MappingNode):
        # As text: YAML would read the language `no` as false, and `1e-5` as text anyway.
        values = {key: scalar(node, as_text=True) for key, _, node in items(root, problems)}
    elif root is not None:
        problems.add(root, "must hold settings, KEY: VALUE a line")
    mistakes = [f"line {line}: {text}" for line, text in problems.found]
    if not mistakes:
        try:
            config = TrainConfig.from_dict(values)
            return {name: getattr(config, name) for name in values}
        except ConfigError as error:
            mistakes = str(error).splitlines()
    raise ConfigError("\n".join(f"{path}: {each}" for each in mistakes))


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
    parser.add_argument("config", metavar="CONFIG", type=Path, help="YAML file, KEY: VALUE a line")
    config = TrainConfig.from_dict(read_config_file(parser.parse_args(argv).config))
    if Path(config.output_dir).exists():
        raise ConfigError(f"output_dir={config.output_dir!r}: is there already; choose another folder")
    from trainer.data.prepared import prepare
    from trainer.scoring.objectives import describe_rates
    from trainer.train import evaluate, train
    from trainer.training.taught import allowed_note

    def report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
        told = f"loss {metrics.get('loss')}" if checkpoint_dir is None else describe_rates(metrics)
        print(f"step {metrics['step']:.0f}, epoch {metrics['epoch']:.2f}: {told}", flush=True)

    data = prepare(config, waveforms=config.augments)
    for note in filter(None, [*data.notes, allowed_note(config, data)]):
        print(f"note: {note}")
    print(f"before: {evaluate(config, data=data).describe()}", flush=True)
    result = train(config, report, data=data, output_dir=Path(config.output_dir))
    if result.diverged or result.best is None:
        print(f"diverged after {result.samples_seen:,} samples; lower the learning rate")
        return 1
    print(f"after:  {describe_rates(result.best)} (best checkpoint: {result.checkpoint})")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""`python -m trainer config.yaml`: one fine-tuning by itself, with the WER before and after."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from trainer.command import run_command
from trainer.errors import ConfigError
from trainer.files import check_room
from trainer.optimizers import check_installed

if TYPE_CHECKING:
    from trainer.config import TrainConfig


def main(argv: Sequence[str] | None = None) -> int:
    """Train as the YAML file says; exit code 2 and one line for a mistake in it, 130 for Ctrl-C."""
    return run_command(lambda: _main(argv))


def _main(argv: Sequence[str] | None) -> int:
    import argparse

    parser = argparse.ArgumentParser(
        prog="python -m trainer",
        description="Fine-tune Whisper once; prints the WER before and after.",
        epilog="settings of the YAML file:\n" + _field_help(),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("config", metavar="CONFIG", help="YAML file of settings, KEY: VALUE a line")
    arguments = parser.parse_args(argv)
    return _run(read_config(Path(arguments.config)))


def read_config(path: Path) -> TrainConfig:
    """The settings of a YAML file.

    Raises:
        ConfigError: the file is missing, no YAML mapping, or has a wrong setting.
    """
    import yaml

    from trainer.config import TrainConfig

    try:
        # Scalars stay text, as written: YAML would read the language `no` as false and `1e-5` as text anyway.
        node = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.BaseLoader)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text in UTF-8"
        raise ConfigError(f"{path}: cannot be read: {reason}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(node, yaml.MappingNode) or any(
        not isinstance(v, yaml.ScalarNode) for _, v in node.value
    ):
        raise ConfigError(f"{path}: must hold settings, KEY: VALUE a line")
    names = [str(key.value) for key, _ in node.value]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ConfigError("\n".join(f"{path}: {name}: is given twice; remove one" for name in twice))
    values = {
        key.value: None if value.value in ("", "null", "~") else value.value for key, value in node.value
    }
    try:
        return TrainConfig.from_dict(values)
    except ConfigError as error:
        raise ConfigError("\n".join(f"{path}: {problem}" for problem in str(error).splitlines())) from error


def _run(config: TrainConfig) -> int:
    check_installed(config.optimizer)
    output = Path(config.output_dir)
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(
            f"output_dir={config.output_dir!r}: is there already; choose another folder or remove it"
        )
    try:
        check_room(output)
    except OSError as error:
        raise ConfigError(
            f"output_dir={config.output_dir!r}: cannot be written: {error.strerror}; choose another folder"
        ) from error

    from trainer.augmentation.sounds import find_sounds, open_sounds
    from trainer.config import SOUNDS
    from trainer.data.prepared import prepare
    from trainer.methods import notes_on_methods
    from trainer.model.whisper import check_depth, load_model_config
    from trainer.scoring.translation import describe_rates, words
    from trainer.train import evaluate, train
    from trainer.training.taught import allowed_note

    check_depth(config, load_model_config(config))
    folders = {name: getattr(config, name) for name in SOUNDS if config.augments and getattr(config, name)}
    for name, folder in folders.items():
        find_sounds(name, folder)
    data = prepare(config, waveforms=config.augments)
    for name, folder in folders.items():
        open_sounds(name, folder, data.folder.parent)  # what cannot be read shows here
    for note in filter(None, [*data.notes, allowed_note(config, data)]):
        print(f"note: {note}")
    for line in notes_on_methods(config.to_dict(), type(config)().to_dict(), [config.method]):
        print(line)
    before = evaluate(config, data=data)
    print(
        f"before: {before.describe()} on {before.clips} validation clips",
        flush=True,
    )
    if data.drops:
        output.mkdir(parents=True, exist_ok=True)
        data.write_dropped(output / "dropped_clips.jsonl")
    result = train(config, _print_report, data=data, output_dir=output)
    if result.diverged or result.wer is None:
        print(
            f"diverged after {result.samples_seen:,} samples: the loss is no finite number; lower the learning rate"
        )
        return 1
    after = words(describe_rates(result.wer, result.cer), config.task)
    print(f"after:  {after} (best checkpoint: {result.checkpoint})")
    return 0


def _print_report(metrics: Mapping[str, float], checkpoint_dir: Path | None) -> None:
    position = f"step {metrics['step']:.0f}, epoch {metrics['epoch']:.2f}"
    if checkpoint_dir is None:
        if "diverged" in metrics:
            return  # told at the end
        print(
            f"{position}: loss {metrics['loss']:.4f}, learning rate {metrics['learning_rate']:.3g}",
            flush=True,
        )
    else:
        from trainer.scoring.translation import describe_rates

        rates = describe_rates(metrics["wer"], metrics.get("cer"), metrics.get("bleu"))
        print(f"{position}: {rates}", flush=True)


def _field_help() -> str:
    """Every setting with its default and docstring."""
    import dataclasses

    from trainer.config import TrainConfig, field_docs

    defaults = {field.name: field.default for field in dataclasses.fields(TrainConfig)}
    return "\n".join(
        f"  {name}: {'null' if defaults[name] is None else defaults[name]}\n      {text}"
        for name, text in field_docs(TrainConfig).items()
    )


if __name__ == "__main__":
    sys.exit(main())

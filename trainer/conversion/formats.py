"""The formats that a model can be exported to, and whether this machine can make them. Imports nothing heavy."""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Mapping, Sequence

from trainer.errors import ConfigError


@dataclasses.dataclass(frozen=True, kw_only=True)
class Format:
    """One format and what decodes it."""

    name: str
    runtime: str
    """Package that decodes it, and that the converted model is checked with."""
    quantizations: tuple[str, ...]
    """How its weights can be stored; the first is the default."""
    packages: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Packages that converting and checking need beyond transformers, by the module that each brings."""


FORMATS: Mapping[str, Format] = {
    each.name: each
    for each in (
        Format(name="hf", runtime="transformers", quantizations=("float32",)),
        Format(
            name="ctranslate2",
            runtime="faster-whisper",
            quantizations=("float16", "float32", "int8", "int8_float16"),
            packages={"ctranslate2": "ctranslate2", "faster_whisper": "faster-whisper"},
        ),
        Format(
            name="ggml",
            runtime="whisper.cpp",
            quantizations=("float16", "int8", "q5_0"),
            packages={"pywhispercpp": "pywhispercpp", "gguf": "gguf"},
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class Target:
    """A format with the storage of its weights; `resolve_targets` makes them."""

    format: Format
    quantization: str

    @property
    def name(self) -> str:
        """The format's name."""
        return self.format.name


def resolve_targets(names: Sequence[str], quantization: str | None) -> list[Target]:
    """What was asked for, checked.

    Args:
        names: formats, each once; the order is kept.
        quantization: storage of the weights in every format but `hf`; each one's default where it is None.

    Raises:
        ConfigError: a format is unknown or given twice, has no such quantization, or its packages are missing.
    """
    targets: list[Target] = []
    for name in names:
        if name not in FORMATS:
            raise ConfigError(f"--format {name}: must be one of {', '.join(FORMATS)}")
        if any(target.name == name for target in targets):
            raise ConfigError(f"--format {name}: is given twice; remove one")
        targets.append(_target(FORMATS[name], quantization))
    if quantization is not None and all(target.name == "hf" for target in targets):
        raise ConfigError(
            f"--quantization {quantization}: the Hugging Face format is always float32; name another --format"
        )
    return targets


def _target(wanted: Format, quantization: str | None) -> Target:
    if quantization is None or wanted.name == "hf":
        return Target(wanted, wanted.quantizations[0])
    if quantization not in wanted.quantizations:
        raise ConfigError(
            f"--quantization {quantization}: {wanted.name} can be stored as {', '.join(wanted.quantizations)}"
        )
    return Target(wanted, quantization)


def check_installed(targets: Sequence[Target]) -> None:
    """Raise `ConfigError` where a package that converting or checking needs is not installed."""
    for target in targets:
        missing = [
            package
            for module, package in target.format.packages.items()
            if importlib.util.find_spec(module) is None
        ]
        if missing:
            needs = " and ".join(missing) + (" is" if len(missing) == 1 else " are")
            raise ConfigError(
                f"--format {target.name}: {needs} not installed; pip install 'tune-whisper[{target.name}]'"
            )

"""`TrainConfig`: every setting of one fine-tuning, validated when it is made.

The module imports nothing heavy, so that the command line can check a whole search space in milliseconds.
"""

from __future__ import annotations

import ast
import dataclasses
import difflib
import inspect
import itertools
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from trainer.bounds import AUTOMATIC, BOUNDS, POSITIVE, convert, in_bounds, read_weights, with_weights
from trainer.deepspeed import resolve_deepspeed
from trainer.errors import ConfigError
from trainer.languages import resolve_language

BUDGETS = ("epochs", "max_steps", "max_samples", "max_hours")
"""Settings of which one says how long a training is."""
_NOT_STREAMED = (
    "splits",
    "max_train_clips",
    "source_weights",
    "language_column",
    "task_column",
    "pack_seconds",
)
SOUNDS = ("noise_dir", "impulse_dir")
"""Settings that name folders of audio that training clips are mixed with."""
#: Settings that decide which clip is in which split.
SPLIT_SETTINGS = (
    "train_split",
    "validation_split",
    "test_split",
    "validation_share",
    "data_seed",
    "split_by",
    "splits",
)

#: Settings that say how rows become clips.
CLIP_SETTINGS = (
    "audio_dir",
    "audio_channel",
    "segment_columns",
    "pack_seconds",
    "empty_text",
    "strip_tokens",
)

#: Settings that say how the texts are written that the model learns.
TEXT_SETTINGS = ("lowercase", "remove_punctuation", "leading_space")

#: Short names and the hub repositories (or the embedded demo) that they stand for.
MODEL_SHORT_NAMES: dict[str, str] = {
    "demo": "demo",
    **{
        name: f"openai/whisper-{name}"
        for name in (
            *("tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en"),
            *("large", "large-v2", "large-v3", "large-v3-turbo"),
        )
    },
    "large-v1": "openai/whisper-large",
    "turbo": "openai/whisper-large-v3-turbo",
}


def written_language(language: str | None, task: str | None) -> str | None:
    """Whisper's code of the language of a text, by what is spoken: translations are English."""
    return "en" if task == "translate" else language


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainConfig:
    """One fine-tuning of Whisper. Frozen; `ConfigError` names the field, the value and what is allowed."""

    # Model
    model: str = "demo"
    """Hub id (`openai/whisper-small`), local folder, or a short name (`demo`, `tiny` ... `large-v3-turbo`)."""
    language: str | None = "en"
    """Spoken language: English name (`belarusian`), ISO 639 code (`be`) or tag (`pt-BR`); `null` for `.en` models."""
    task: Literal["transcribe", "translate"] = "transcribe"
    """`transcribe` writes the spoken language, `translate` writes English."""

    # What of the model is trained
    dropout: float = 0.0
    """Dropout probability in every layer while training."""
    method: Literal["full", "decoder", "lora"] = "full"
    """What is trained: all weights (`full`), the `decoder`, or low-rank adapters (`lora`, arXiv:2106.09685)."""
    lora_rank: int = 16
    """LoRA: rank of the adapters; each weight (outputs x inputs) gets rank x (outputs + inputs) numbers to train."""
    lora_alpha: float = 32.0
    """LoRA: the output of the adapters is scaled by alpha / rank."""
    lora_scaling: Literal["standard", "rank_stabilized"] = "standard"
    """LoRA: `rank_stabilized` (rsLoRA, arXiv:2312.03732) scales by alpha / sqrt(rank) instead, for high ranks."""
    lora_dropout: float = 0.0
    """LoRA: dropout probability before each adapter while training."""
    lora_targets: Literal["attention", "attention and feed-forward"] = "attention"
    """LoRA: layers with adapters: the attention projections, or the feed-forward layers as well."""
    freeze_encoder_layers: int = 0
    """With `full` and `lora`: number of encoder layers, from the first on, that are not trained, nor are the
    convolutions before them."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, about a third more time."""

    # Augmentation of the training clips
    augment: float = 0.0
    """Share of the training clips whose audio is changed at random, anew in each epoch; 0: none."""
    augment_strength: float = 1.0
    """Strength of speed, noise and rooms below; does not scale the shares of clips; 0: nothing is changed."""
    augment_speed: float = 0.3
    """Largest change x of speed and pitch together: from 1 / (1 + x) to 1 + x times."""
    augment_reverb: float = 0.3
    """Share of the changed clips that get the echo of a room from `impulse_dir`; none without it."""
    impulse_dir: str | None = None
    """Folder of impulse responses of rooms, as audio files."""
    augment_noise: float = 0.5
    """Share of the changed clips that get noise: from `noise_dir`, or synthetic, from white to brown."""
    augment_snr: float = 8.0
    """Smallest signal-to-noise ratio in decibels; the largest is 35."""
    noise_dir: str | None = None
    """Folder of noises, as audio files."""
    augment_telephone: float = 0.1
    """Share of the changed clips that are limited to the frequency band of a telephone."""
    spec_augment: bool = False
    """Mask stretches of time and of mel bands in the training features (SpecAugment, arXiv:1904.08779)."""
    mask_time_prob: float = 0.05
    """SpecAugment: share of the feature frames in masked stretches of time."""
    mask_time_length: int = 10
    """SpecAugment: frames of 10 ms in a masked stretch."""
    mask_feature_prob: float = 0.05
    """SpecAugment: share of the mel bands masked."""
    mask_feature_length: int = 10
    """SpecAugment: mel bands in a masked stretch."""

    # Data and its splits
    data: str = "demo"
    """`demo`, a hub data set, or a path: table, `audiofolder`, Common Voice release, `save_to_disk` folder."""
    data_config: str | None = None
    """Configuration of a hub data set (for `google/fleurs`: `be_by`)."""
    train_split: str = "train"
    """Name of the split to train on."""
    validation_split: str = "validation"
    """Name of the split that WER is measured on; made from the training split if it is missing."""
    test_split: str = "test"
    """Name of the held-out split, never used by the search; made from the training split if it is missing."""
    train_on: Literal["train", "train+validation"] = "train"
    """Clips that are trained on: with `train+validation` those of both, and WER is measured on the test split."""
    validation_share: float = 0.1
    """Share of the training clips that become the validation split, or the test split, if the data has none."""
    split_by: str | None = "auto"
    """What splits that are made must not share: `auto` (files, texts and, if a column has them, speakers, as far as
    possible), names such as `speaker` or `text,session` (files always), or `null`: texts only."""
    splits: str | None = None
    """File that says which clips are in which split: `splits.parquet` of an experiment. New clips are trained on,
    except those whose text or speaker is held out there; `null`: the data's own splits, or new ones."""

    # Rows as clips
    audio_column: str | None = None
    """Column that holds the audio or its path; found by the usual names when `null`."""
    audio_dir: str | None = None
    """Folder with the audio files that tables name; they are found by their paths, else by their file names; `null`:
    the folder of the table."""
    text_column: str | None = None
    """Column that holds the transcript; found by the usual names when `null`."""
    empty_text: Literal["drop", "keep"] = "drop"
    """Clips with an empty text: `drop` leaves them out, `keep` trains the model to write nothing for them."""
    strip_tokens: bool = False
    """Remove Whisper's own tokens, such as `<|0.00|>`, from texts; otherwise such texts are refused."""
    language_column: str | None = None
    """Column with the language of each clip, as a name or code, if the model shall learn several languages."""
    task_column: str | None = None
    """Column with the task of each clip, `transcribe` or `translate`."""
    audio_channel: int | None = None
    """Channel of the audio files that is used, counted from 1; `null`: the mean of all."""
    segment_columns: str | None = "start,end"
    """Columns with start and end in seconds (milliseconds if the names end with `_ms`), or `offset,duration`, if rows
    are parts of recordings; `null`: rows are whole files."""
    pack_seconds: float | None = None
    """Neighbouring parts of a recording are joined to clips of up to so many seconds, at most the model's window; 0:
    never; `null` or `auto`: subtitles up to 20 s, rows of tables never."""
    row_filter: str | None = None
    """Keep only rows with these values, as `column=value` or `a=x,b=y`."""

    # How much of the data
    source_weights: str | None = None
    """For data with several sources: how often the clips of a source come in an epoch, as `fleurs=0.5,own=2`; replaces
    the weights in the data file."""
    max_train_clips: int | None = None
    """Use at most this many training clips, of several sources of each, chosen by `data_seed`."""
    max_eval_clips: int | None = None
    """Use at most this many validation clips, and as many test clips, of several sources of each, chosen by
    `data_seed`; `null` or `auto`: all, but the trials of a search are measured on a fixed part of 500 to 2,000."""
    streaming: bool = False
    """Read the training split while training, from Parquet or WebDataset shards of the hub, of `s3://`, `gs://` or a
    folder; it is not downloaded as a whole. Needs `audio_window` in seconds and a budget other than `epochs`."""
    shuffle_buffer: int = 1000
    """With `streaming`: clips that each worker holds in memory to draw the next one from at random."""
    max_dropped_share: float = 0.25
    """Stop when more than this share of the clips cannot be used."""
    data_seed: int = 0
    """Seed of the splits and subsets that are made; separate from `seed`, so that all trials see the same data."""
    cache_dir: str = "experiments/.feature-cache"
    """Folder of the feature caches, shared by all trials and experiments."""

    # Texts that are learned
    lowercase: bool = False
    """Lower-case the transcripts that the model learns."""
    remove_punctuation: bool = False
    """Remove punctuation from the transcripts that the model learns."""
    leading_space: bool = True
    """Begin the texts that the model learns with a space, as Whisper does; never for languages without spaces."""
    timestamp_share: float = 0.0
    """Share of the training clips, drawn anew in each epoch, whose texts have start and end times, so that the model
    can still write timestamps (transformers' `return_timestamps`, subtitles, WhisperX)."""
    keep_suppress_tokens: bool = False
    """Keep the base model's `suppress_tokens`, symbols such as brackets that it never writes; otherwise symbols that
    occur in the training texts are removed from the list."""

    # How much of its window the model uses
    audio_window: float | Literal["batch"] | None = None
    """Seconds of audio that the encoder processes: `batch`: the longest clip of each effective batch; `null` or
    `auto`: the longest clip of all; 30: Whisper's whole window."""
    group_by_length: bool = False
    """With `audio_window: batch` or `auto`: put clips of similar length into one step, whose longest clip is the
    window."""
    full_window_evaluation: bool = True
    """Evaluate with the model's whole window, as it will be used; in a search with finalists only these are."""

    # Optimisation
    optimizer: Literal["adamw", "adafactor", "adamw_8bit"] = "adamw"
    """`adafactor` needs hardly any optimiser memory, `adamw_8bit` a quarter of AdamW's (needs bitsandbytes)."""
    adam_beta1: float = 0.9
    """AdamW: decay of the mean gradient from step to step."""
    adam_beta2: float = 0.999
    """AdamW: decay of the mean squared gradient."""
    adam_epsilon: float = 1e-8
    """AdamW: added to the root of the mean squared gradient."""
    learning_rate: float | None = None
    """Peak learning rate; `null` takes the default for the model's size."""
    scheduler_type: Literal[
        "linear", "cosine", "constant", "constant_with_warmup", "polynomial", "warmup_stable_decay"
    ] = "linear"
    """Learning-rate schedule after the warmup, which `constant` has too; its length is always the full budget."""
    decay_ratio: float = 0.2
    """`warmup_stable_decay`: share of the optimiser steps, at the end, in which the rate falls to 0."""
    warmup_ratio: float = 0.1
    """Share of the optimiser steps in which the learning rate rises from 0 to its peak."""
    warmup_steps: int | None = None
    """Optimiser steps of warmup; overrides `warmup_ratio`."""
    weight_decay: float = 0.0
    """Decoupled weight decay."""
    label_smoothing: float = 0.0
    """Probability mass spread over all tokens in the training loss."""
    max_grad_norm: float = 1.0
    """Gradients are clipped to this norm; 0 switches clipping off."""

    # Batches and budget
    train_batch_size: int = 8
    """Clips in one forward pass of one worker."""
    gradient_accumulation_steps: int = 1
    """Forward passes in one optimiser step; effective batch = batch size x accumulation x workers."""
    micro_batch: int | None = None
    """Most clips in a forward pass; a larger batch is split, and its gradient stays the same; `null`: no limit."""
    epochs: float | None = None
    """Budget in passes over the training clips, may be fractional; 3 if no budget is given."""
    max_steps: int | None = None
    """Budget in optimiser steps; instead of the others."""
    max_samples: int | None = None
    """Budget in training clips seen; instead of the others."""
    max_hours: float | None = None
    """With `streaming`: budget in hours of audio, by the mean length of some clips; instead of the others."""
    evaluations: int = 4
    """Number of evaluations of a training without a search, evenly spread over the budget."""
    evaluate_at: tuple[int, ...] | None = None
    """Samples seen at which to evaluate, report and save; set by a search to its rungs; overrides `evaluations`."""

    # Machine
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of training and evaluation; `auto`: bf16, else fp16, where the GPU has it, else fp32."""
    tf32: bool = True
    """Use TensorFloat-32 for multiplications that remain in fp32, on GPUs that have it (Ampere and newer)."""
    torch_compile: bool = False
    """Compile the model: faster steps, but a minute or more before the first; all batches then have one window."""
    seed: int = 0
    """Seed of data order, dropout and augmentation."""
    dataloader_workers: int | None = None
    """Processes that load batches beside the training process; `null`: none, except on a GPU with `augment` up to 8,
    as far as free shared memory allows."""
    workers: int = 1
    """Processes that train together, each on its own GPU if there are any; set by the command that starts them."""
    deepspeed: str | None = None
    """DeepSpeed settings: `ds_config.json` (ZeRO 2), `ds_config_zero3.json`, a JSON file of your own, or its text."""

    # Evaluation
    objective: Literal["clips", "sources", "worst_source"] = "clips"
    """For data with several sources: the error rate that decides is that of all clips together (`clips`), the mean of
    the sources' rates (`sources`), or the highest of them (`worst_source`)."""
    eval_batch_size: int | None = None
    """Clips in a batch of an evaluation; `null` or `auto`: 128 on a GPU, fewer if memory runs out; else 16."""
    generation_max_length: int | None = None
    """Most tokens of a transcript in evaluation, without its prefix; `null` takes the model's own limit (448)."""
    generation_num_beams: int = 1
    """Beams of the search for the transcript; 1 is greedy."""
    normalizer: Literal["auto", "whisper", "basic", "none"] = "auto"
    """Normalisation before WER: `auto` (by language), `basic` (case, punctuation), `whisper` (its own) or `none`."""

    # Output
    output_dir: str = "whisper-finetuned"
    """Folder of a training without a search: checkpoints, the model, the list of dropped clips."""
    log_every_seconds: float = 5.0
    """Seconds between two reports of loss and learning rate."""

    def __post_init__(self) -> None:
        problems = []
        for field in dataclasses.fields(self):
            try:
                value = check_value(field.name, getattr(self, field.name))
                object.__setattr__(self, field.name, value)
            except ConfigError as error:
                problems.append(str(error))
        if not problems and len(budgets := [name for name in BUDGETS if getattr(self, name) is not None]) > 1:
            given = " and ".join(f"{name}={getattr(self, name):g}" for name in budgets)
            problems.append(f"{given}: only one budget can be given; remove one")
        if not problems:
            problems += self._stream_problems()
        if not problems and self.deepspeed is not None and self.optimizer != "adamw":
            problems.append(
                f"optimizer={self.optimizer!r}: DeepSpeed runs AdamW, or the optimizer of its own settings; use "
                "optimizer=adamw, or remove deepspeed"
            )
        if problems:
            raise ConfigError("\n".join(problems))

    def _stream_problems(self) -> list[str]:
        """What does not go with streaming, or without."""
        if not self.streaming:
            return (
                ["max_hours: works only with streaming=true; give max_samples instead"]
                if self.max_hours
                else []
            )
        given = {name: getattr(self, name) for name in _NOT_STREAMED if getattr(self, name)}
        problems = [
            f"{name}={value!r}: cannot be combined with streaming=true; remove it"
            for name, value in given.items()
        ]
        if self.train_on != "train":
            problems.append(f"train_on={self.train_on!r}: cannot be combined with streaming=true; remove it")
        if self.data == "demo" or self.data.lower().endswith((".yaml", ".yml")):
            problems.append(f"data={self.data!r}: cannot be streamed; give shards, or remove streaming")
        if not isinstance(self.audio_window, float):
            problems.append(
                f"streaming=true: lengths are not known beforehand, and audio_window is {self.audio_window or 'auto'}; "
                "set it to seconds, such as 30"
            )
        if all(getattr(self, name) is None for name in BUDGETS if name != "epochs"):
            problems.append(
                "streaming=true: a stream has no epochs that are known beforehand; give max_steps, max_samples or "
                "max_hours"
            )
        return problems

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> TrainConfig:
        """Make a config from plain values, as a YAML file holds them.

        Raises:
            ConfigError: keys are unknown (the nearest right name is given) or values not allowed; a line each.
        """
        values = with_weights(values.get("source_weights"), values)
        problems = [unknown_field_message(key) for key in values if key not in _HINTS]
        known = {key: value for key, value in values.items() if key in _HINTS}
        try:
            config = cls(**known)
        except ConfigError as error:
            problems += str(error).splitlines()
        if problems:
            raise ConfigError("\n".join(problems))
        return config

    def replace(self, **changes: Any) -> TrainConfig:
        """A copy with some fields changed, validated again; `weight.NAME` changes one of `source_weights`."""
        return dataclasses.replace(self, **with_weights(self.source_weights, changes))

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values (JSON, YAML)."""
        return dataclasses.asdict(self)

    @property
    def effective_batch_size(self) -> int:
        """Clips in one optimiser step: micro-batch x accumulation x workers."""
        return self.train_batch_size * self.gradient_accumulation_steps * self.workers

    @property
    def augments(self) -> bool:
        return self.augment > 0 and self.augment_strength > 0

    @property
    def normalizer_name(self) -> str:
        """The normaliser as reports name it: `auto` with the code of the language that is written, as `auto-be`."""
        return f"auto-{self.written_language}" if self.normalizer == "auto" else self.normalizer

    @property
    def written_language(self) -> str:
        """Whisper's code of the language that the model writes; it translates into English."""
        return written_language(self.language, self.task) or "en"

    @property
    def weights(self) -> dict[str, float]:
        """`source_weights` by source."""
        return read_weights(self.source_weights) or {}

    @property
    def model_source(self) -> str:
        """What `from_pretrained` is given: short names resolved, everything else as it is."""
        return MODEL_SHORT_NAMES.get(self.model, self.model)


_HINTS: dict[str, Any] = typing.get_type_hints(TrainConfig)


def field_docs(settings: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, from its source."""
    body = typing.cast("ast.ClassDef", ast.parse(inspect.getsource(settings)).body[0]).body
    return {
        statement.target.id: str(following.value.value)
        for statement, following in itertools.pairwise(body)
        if isinstance(statement, ast.AnnAssign)
        and isinstance(statement.target, ast.Name)
        and isinstance(following, ast.Expr)
        and isinstance(following.value, ast.Constant)
    }


def field_type(name: str) -> tuple[type, tuple[str, ...], bool]:
    """The plain type of a field, the words that it may hold (of text those alone, if there are any), and whether it may
    be `None`.
    """
    hint = _HINTS[name]
    union = typing.get_origin(hint) in (typing.Union, types.UnionType)
    members = typing.get_args(hint) if union else (hint,)
    literals = [member for member in members if typing.get_origin(member) is Literal]
    kinds = [member for member in members if member not in (*literals, types.NoneType)]
    words = tuple(word for literal in literals for word in typing.get_args(literal))
    return kinds[0] if kinds else str, words, types.NoneType in members


def check_value(name: str, value: Any) -> Any:
    """`value` as the field `name` holds it (numbers written as text, such as YAML's `1e-5`, are converted).

    Raises:
        ConfigError: the value has the wrong type or is out of range; the message says what is allowed.
    """
    kind, words, optional = field_type(name)
    if (value is None and optional) or (name in AUTOMATIC and value == "auto"):
        return None
    if name == "evaluate_at":
        return _check_increasing(name, value)
    if value in words:
        return value
    converted = convert(kind, value)
    if converted is None or (kind is str and words) or not in_bounds(name, converted):
        raise ConfigError(f"{name}={value!r}: must be {describe_field(name)}")
    if name == "language":
        return resolve_language(converted)
    if name == "source_weights" and read_weights(converted) is None:
        raise ConfigError(f"{name}={value!r}: must be weights from 0 to 1000, each once, as fleurs=0.5,own=2")
    if name == "deepspeed":
        return resolve_deepspeed(converted)
    if name == "segment_columns" and [bool(part.strip()) for part in converted.split(",")] != [True, True]:
        raise ConfigError(
            f"{name}={value!r}: must be the names of two columns with a comma between, such as start,end, or null"
        )
    scheme, _, rest = converted.partition("://") if name == "data" else ("", "", "")
    if "@" in rest.split("/")[0] and not (scheme == "gs" and rest.startswith("anonymous@")):
        shown = f"{scheme}://***@{rest.partition('@')[2]}"
        raise ConfigError(
            f"data={shown!r}: the address has keys in it, which would be written down; leave them out, and set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY or what else the store takes"
        )
    if name in ("model", "data", "cache_dir", "output_dir") and not converted:
        raise ConfigError(f"{name}={value!r}: must not be empty")
    return converted


def _check_increasing(name: str, value: Any) -> tuple[int, ...]:
    numbers = [convert(int, item) for item in value] if isinstance(value, list | tuple) else []
    if not numbers or None in numbers or numbers[0] < 1 or sorted(set(numbers)) != numbers:
        raise ConfigError(f"{name}={value!r}: must be {describe_field(name)}")
    return tuple(numbers)


def describe_field(name: str) -> str:
    """What the field allows, in words: `a whole number of at least 1`."""
    kind, words, optional = field_type(name)
    if name == "evaluate_at":
        text = "a list of increasing whole numbers of at least 1"
    elif kind is str and words:
        text = f"one of {', '.join(words)}"
        words = ()
    elif kind is bool:
        text = "true or false"
    elif kind is str:
        text = "text"
    else:
        text = "a whole number" if kind is int else "a number"
        low, high = BOUNDS.get(name, (None, None))
        if name in POSITIVE:
            text += " above 0"
        elif low is not None and high is not None:
            text += f" from {low} to {high}"
        elif low is not None:
            text += f" of at least {low}"
    others = [*words, *(["auto"] if name in AUTOMATIC else []), *(["null"] if optional else [])]
    return " or ".join([", ".join([text, *others[:-1]]), *others[-1:]])


def nearest_field(key: str) -> str | None:
    """The field whose name is nearest to `key`, if any is near."""
    aliases = {
        "batch_size": "train_batch_size",
        "lr": "learning_rate",
        "warmup": "warmup_ratio",
        "per_device_train_batch_size": "train_batch_size",
        "num_train_epochs": "epochs",
        "lr_scheduler_type": "scheduler_type",
        "lr_scheduler": "scheduler_type",
        "optim": "optimizer",
        "grad_accumulation": "gradient_accumulation_steps",
        "accumulation": "gradient_accumulation_steps",
    }
    if key in aliases:
        return aliases[key]
    matches = difflib.get_close_matches(key, list(_HINTS), n=1, cutoff=0.6)
    return matches[0] if matches else None


def unknown_field_message(key: str) -> str:
    """The line that an unknown setting gets, with the nearest right name."""
    near = nearest_field(key)
    hint = f"did you mean {near}?" if near else "python -m trainer --help lists them"
    return f"unknown setting {key!r}; {hint}"

"""Mistakes in a space file: each is answered with one line that names its place, and all of them at once."""

import re
from pathlib import Path

import pytest
from plans import LR, Load

from tune.space.parameters import NOT_SEARCHABLE
from tune.util.errors import SpaceError

AUGMENT = "spec_augment: {type: choice, values: [false, true]}\n"
MASK = AUGMENT + "mask_time_prob: {type: float, low: 0, high: 1, when: {spec_augment: true}}\n"
# fmt: off
BAD_FILES = {
    # The file as a whole
    "broken": ("a: [1\nb: 2", "2: not valid YAML: expected ',' or ']', but got ':'"),
    "empty": ("# nothing\n", "1: the file is empty; name at least one parameter"),
    "list": ("- 1\n", "1: the top level must be a mapping"),
    "no search": ("weight_decay: 0.1\n", "1: nothing is searched; at least one setting needs a range"),
    # Keys
    "unknown": ("learnin_rate: {type: float, low: 1e-5, high: 1e-3}", "learnin_rate: unknown setting; did you"),
    "twice": (LR + "dropout: 0.1\n" + LR, "3: learning_rate: given twice, first in line 1; remove one"),
    "empty tag": ("learning_rate: !!float ''", "1: learning_rate='': must be a number above 0"),
    "wrong tag": ("learning_rate: !!float x", "1: learning_rate='x': must be a number above 0"),
    "list value": (LR + "dropout: [0, 0.1]", "2: dropout: a list; to choose from it, write {type: choice, values"),
    "fixed range": (LR + "fixed:\n  dropout: {type: float}", "3: fixed: dropout: must be a plain value"),
    # Ranges
    "type": ("dropout: {type: flaot}", "1: dropout: type='flaot': must be float, int or choice; did you mean float?"),
    "sub key": ("dropout: {type: float, lo: 0, low: 0, high: 0.1}", "1: dropout: unknown key 'lo'; did you mean low?"),
    "no low": ("dropout:\n  type: float\n  high: 0.1", "1: dropout: low is missing; add low: and a number"),
    "reversed": ("learning_rate: {type: float, low: 1e-3, high: 1e-5}", "low=0.001 is above high=1e-05; swap them"),
    "equal": ("dropout: {type: float, low: 0.1, high: 0.1}", "low and high are both 0.1: nothing to search; write"),
    "log step": ("dropout: {type: float, low: 0.1, high: 0.3, log: true, step: 0.1}", "log and step cannot be"),
    "wide step": ("dropout: {type: float, low: 0, high: 0.1, step: 0.2}", "step=0.2 is larger than the range from 0"),
    "log zero": ("dropout: {type: float, low: 0, high: 0.1, log: true}", "log: true needs low above 0, got low=0"),
    "float for int": ("train_batch_size: {type: float, low: 1, high: 9}", "write type: int instead of type: float"),
    "range for bool": ("spec_augment: {type: int, low: 0, high: 1}", "{type: choice, values: [true, false]}"),
    "auto": ("dropout: {type: float, low: auto, high: 0.1}", "low: auto is known for a learning_rate of type"),
    "word": ("audio_window: {type: float, low: batch, high: 30}", "1: audio_window: low='batch': must be a number"),
    # Choices
    "no values": ("dropout: {type: choice}", "1: dropout: values is missing; add values: [...]"),
    "double": ("dropout: {type: choice, values: [0.1, 1e-1, 0.2]}", "values holds 0.1 more than once"),
    "value": ("train_batch_size:\n  type: choice\n  values:\n  - 4\n  - x", "5: train_batch_size: values: 'x': must"),
    # Conditions
    "when text": (LR + "dropout: {type: choice, values: [0, 0.1], when: yes}", "2: dropout: when: must be a mapping"),
    "when no value": (
        f"{LR}{AUGMENT}dropout: {{type: choice, values: [0, 0.1], when: {{spec_augment: []}}}}",
        "3: dropout: when: spec_augment: is an empty list",
    ),
    "when never chosen": (
        LR + "train_batch_size: {type: choice, values: [4, 8]}\n"
        "dropout: {type: choice, values: [0, 0.1], when: {train_batch_size: [4, 5]}}",
        "3: dropout: when: train_batch_size=5: is none of its searched values (one of 4, 8)",
    ),
    "when range": (
        LR + "weight_decay: {type: float, low: 0, high: 1}\n"
        "dropout: {type: choice, values: [0, 0.1], when: {weight_decay: 0}}",
        "3: dropout: when: weight_decay: is a range of real numbers; name a choice",
    ),
    "when usual": (
        LR + "mask_time_prob: {type: float, low: 0, high: 1, when: {spec_augment: true}}",
        "2: mask_time_prob: is never searched, where spec_augment is true: spec_augment is false; fix",
    ),
    "augmentation off": (
        LR + "augment_speed: {type: float, low: 0, high: 0.4}",
        "2: augment_speed: is searched without effect: augment is 0; set it to a share of the clips, or fix augment_sp",
    ),
    "when circle": (
        LR + "spec_augment: {type: choice, values: [false, true], when: {group_by_length: true}}\n"
        "group_by_length: {type: choice, values: [false, true], when: {lowercase: true}}\n"
        "lowercase: {type: choice, values: [false, true], when: {spec_augment: true}}\n",
        "2: spec_augment: when: the conditions of spec_augment, group_by_length, lowercase depend on each other in a "
        "circle; remove one",
    ),
    "range behind": (
        f"{LR}{AUGMENT}dropout:\n- {{type: choice, values: [0, 0.1]}}\n"
        "- {type: choice, values: [0.2, 0.3], when: {spec_augment: true}}",
        "5: dropout: is never searched, where spec_augment is true: no trial has that, or an earlier range applies",
    ),
    "point under a condition": (
        f"{LR}{MASK}try_first:\n- {{spec_augment: false, mask_time_prob: 0.1}}",
        "5: try_first: point 1: mask_time_prob: is searched only where spec_augment is true; remove it here",
    ),
    # Optimisers and schedules
    "beta of some optimisers": (
        LR + "optimizer: {type: choice, values: [adafactor, adamw]}\n"
        "adam_beta2: {type: float, low: 0.9, high: 0.999}",
        "3: adam_beta2: is searched without effect: optimizer can be adafactor; add when: {optimizer: [adamw, ad",
    ),
    # How much is trained
    "rank without a condition": (
        LR + "method: {type: choice, values: [full, lora]}\nlora_rank: {type: choice, values: [8, 16]}",
        "3: lora_rank: is searched without effect: method can be full; add when: {method: lora}",
    ),
    # Priors
    "prior outside": (
        "dropout: {type: float, low: 0, high: 0.1, prior: 0.2}",
        "1: dropout: prior=0.2: must lie in the range (0 to 0.1)",
    ),
    "prior without a spread": (
        "dropout: {type: float, low: 0, high: 0.1, prior: {centre: 0.05, spread: 0.1}}",
        "1: dropout: prior: must be a number, or have both keys, as in {center: 1, spread: 2}",
    ),
    "spread is no factor": (
        "dropout: {type: float, low: 0.01, high: 0.1, log: true, prior: {center: 0.05, spread: 0.5}}",
        "1: dropout: prior: spread=0.5: must be a factor above 1, with log: true",
    ),
    "prior of a choice": (
        "dropout: {type: choice, values: [0, 0.1], prior: 0.1}",
        "1: dropout: unknown key 'prior'; choice has type, values, when",
    ),
    # Points to try first
    "point": (LR + "try_first: [3]", "2: try_first: point 1: must be a mapping"),
    "point fixed": (LR + "dropout: 0\ntry_first: [{dropout: 0.1}]", "dropout: is fixed in line 2; remove it here"),
    "point outside": (
        LR + "try_first:\n- {}\n- {learning_rate: 1}",
        "4: try_first: point 2: learning_rate=1: outside the searched range (1e-05 to 0.001, log scale)",
    ),
    "point missing": (
        LR + "train_batch_size: {type: choice, values: [32, 64]}\ntry_first: [{learning_rate: 1e-4}]",
        "3: try_first: point 1: train_batch_size is missing, and the usual 8 is out of range; add train_",
    ),
    # Settings of scheduler and searcher
    "scheduler key": (LR + "scheduler: {rung: 3}", "2: scheduler: unknown setting 'rung'; did you mean rungs?"),
    "scheduler key in searcher": (LR + "searcher: {rungs: 3}", "unknown setting 'rungs'; write it under scheduler:"),
    "scheduler key outside": (LR + "rungs: 3", "2: rungs: write it under scheduler:"),
    "rungs": (LR + "scheduler: {rungs: 2.5}", "rungs=2.5: must be a whole number from 1 to 10"),
}
# fmt: on


@pytest.mark.parametrize(("text", "message"), BAD_FILES.values(), ids=BAD_FILES)
def test_each_mistake_gets_one_line(load: Load, tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpaceError) as error:
        load(text)
    lines = str(error.value).splitlines()
    assert len(lines) == 1, lines
    assert re.match(rf"{re.escape(str(tmp_path))}/s\.yaml:\d+: \S", lines[0])
    assert message in lines[0].removeprefix(f"{tmp_path}/s.yaml:")


def test_all_mistakes_are_told_at_once_in_the_order_of_the_file(load: Load, tmp_path: Path) -> None:
    text = """\
learning_rate: {type: float, low: 1e-3, high: 1e-5, log: ye}
warmup: 0.1
train_batch_size: {type: float, low: 4, high: 8}
dropout: {type: float, lo: 0, high: most}
try_first: [{learning_rate: x, seed: 3}]
weight_decay: -1
"""
    with pytest.raises(SpaceError) as error:
        load(text, {"epoch": 3, "seed": "x"})
    found = [line.removeprefix(f"{tmp_path}/s.yaml:") for line in str(error.value).splitlines()]
    assert [line.split(":")[0] for line in found[:8]] == ["1", "1", "2", "3", "4", "4", "5", "5"]
    assert found[8].startswith("6: weight_decay=-1: must be a number of at least 0")
    assert found[9:] == [
        "epoch=3: unknown setting 'epoch'; did you mean epochs?",
        "seed='x': must be a whole number from 0 to 4294967295",
    ]


@pytest.mark.parametrize("name", sorted({*NOT_SEARCHABLE}))
def test_what_makes_trials_incomparable_cannot_be_searched(load: Load, name: str) -> None:
    with pytest.raises(SpaceError, match=f"s.yaml:2: {name}: can be fixed but not searched: "):
        load(LR + f"{name}: {{type: choice, values: [1, 2]}}")

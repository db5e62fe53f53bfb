"""Mistakes in a space file: each is answered with one line that names its place, and all of them at once."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from space_files import LR, Load, space_loader

from tune.space.parameters import NOT_SEARCHABLE
from tune.util.errors import SpaceError


@pytest.fixture
def load(tmp_path: Path) -> Load:
    return space_loader(tmp_path)


AUGMENT = "spec_augment: {type: choice, values: [false, true]}\n"
MASK = AUGMENT + "mask_time_prob: {type: float, low: 0, high: 1, when: {spec_augment: true}}\n"
BAD_FILES = {
    # The file as a whole
    "broken": ("a: [1\nb: 2", "2: not valid YAML: expected ',' or ']', but got ':'"),
    "broken2": ("learning_rate: {type: float", "1: not valid YAML"),
    "tab": (LR + "\tx: 1", "2: not valid YAML: found character '\\t'"),
    "control": (LR + "weight_decay: \x01", r"2: not valid YAML: the character '\x01' is not allowed"),
    "two": (LR + "---\n" + LR, "2: not valid YAML: but found another document"),
    "empty": ("# nothing\n", "1: the file is empty; name at least one parameter"),
    "list": ("- 1\n", "1: the top level must be a mapping"),
    "text": ("hello\n", "1: the top level must be a mapping"),
    "no search": ("weight_decay: 0.1\n", "1: nothing is searched; at least one setting needs a range"),
    "section": ("fixed: 3\n" + LR, "1: fixed: must be a mapping of settings"),
    # Keys
    "unknown": (
        "learnin_rate: {type: float, low: 1e-5, high: 1e-3}",
        "learnin_rate: unknown setting; did you",
    ),
    "unknown2": (LR + "batch_size: 3", "2: batch_size: unknown setting; did you mean train_batch_size?"),
    "unknown3": (LR + "schedular: {rungs: 3}", "2: schedular: unknown setting; did you mean scheduler?"),
    "unknown4": (LR + "xyzzy: 3", "2: xyzzy: unknown setting; see the fields of TrainConfig"),
    "twice": (LR + "dropout: 0.1\n" + LR, "3: learning_rate: given twice, first in line 1; remove one"),
    "twice2": (LR + "fixed: {learning_rate: 1e-3}", "2: learning_rate: given twice, first in line 1"),
    "twice3": ("dropout: {type: float, type: int, low: 0, high: 0.1}", "1: dropout: type: given twice"),
    "key": ("{[1]: 2}", "1: a key must be a name"),
    "list value": (
        LR + "dropout: [0, 0.1]",
        "2: dropout: a list; to choose from it, write {type: choice, values",
    ),
    "fixed ranges": (
        LR + "fixed:\n  dropout: [{type: float, low: 0, high: 0.1}]",
        "3: fixed: dropout: must be a plain",
    ),
    "fixed range": (LR + "fixed:\n  dropout: {type: float}", "3: fixed: dropout: must be a plain value"),
    "evaluate_at": (LR + "evaluate_at: [1]", "2: evaluate_at: is set by the search; set scheduler: {rungs"),
    # Fixed values
    "fixed type": (LR + "weight_decay: high", "2: weight_decay='high': must be a number of at least 0"),
    "fixed choice": (LR + "precision: fp8", "2: precision='fp8': must be one of auto, fp32, bf16, fp16"),
    "fixed bool": (LR + "spec_augment: 1", "2: spec_augment=1: must be true or false"),
    "fixed range2": (LR + "dropout: 2", "2: dropout=2: must be a number from 0 to 0.9"),
    "fixed null": (LR + "dropout:", "2: dropout=None: must be a number from 0 to 0.9"),
    "huge": (LR + f"seed: 1{'0' * 400}", "must be a whole number from 0 to"),
    "language": (
        LR + "language: belorussian",
        "2: language='belorussian': Whisper does not know this language",
    ),
    "budgets": (LR + "epochs: 3\nmax_steps: 5", "2: epochs and max_steps: only one budget can be given"),
    # Ranges
    "no type": (
        "dropout: {low: 0, high: 0.1}",
        "1: dropout: type is missing; add type: float, int or choice",
    ),
    "type": (
        "dropout: {type: flaot}",
        "1: dropout: type='flaot': must be float, int or choice; did you mean float?",
    ),
    "type2": ("dropout: {type: categorical}", "did you mean choice?"),
    "type3": ("dropout: {type: [float]}", "1: dropout: type=['...']: must be float, int or choice"),
    "sub key": (
        "dropout: {type: float, lo: 0, low: 0, high: 0.1}",
        "1: dropout: unknown key 'lo'; did you mean low?",
    ),
    "sub key2": ("dropout: {type: float, min: 0, high: 0.1}", "unknown key 'min'; did you mean low?"),
    "sub key3": (
        "dropout: {type: choice, values: [0], log: true}",
        "unknown key 'log'; choice has type, values",
    ),
    "no low": ("dropout:\n  type: float\n  high: 0.1", "1: dropout: low is missing; add low: and a number"),
    "no high": ("dropout: {type: float, low: 0}", "1: dropout: high is missing"),
    "null": ("dropout:\n  type: float\n  low:\n  high: 0.1", "3: dropout: low is missing"),
    "bound": (
        "dropout:\n  type: float\n  low: 0\n  high: most",
        "4: dropout: high='most': must be a number from 0",
    ),
    "bound2": (
        "dropout: {type: float, low: 0, high: 1.5}",
        "1: dropout: high=1.5: must be a number from 0 to 0.9",
    ),
    "bound3": ("dropout: {type: float, low: true, high: 0.1}", "1: dropout: low=True: must be a number"),
    "bound4": ("learning_rate: {type: float, low: 0, high: 1e-3}", "low=0: must be a number above 0"),
    "bound5": ("learning_rate: {type: float, low: 1e-5, high: .inf}", "high=inf: must be a number above 0"),
    "bound6": ("dropout: {type: float, low: [0], high: 0.1}", "1: dropout: low=['...']: must be a number"),
    "reversed": (
        "learning_rate: {type: float, low: 1e-3, high: 1e-5}",
        "low=0.001 is above high=1e-05; swap them",
    ),
    "equal": (
        "dropout: {type: float, low: 0.1, high: 0.1}",
        "low and high are both 0.1: nothing to search; write",
    ),
    "log zero": (
        "dropout: {type: float, low: 0, high: 0.1, log: true}",
        "log: true needs low above 0, got low=0",
    ),
    "log zero int": ("warmup_steps: {type: int, low: 0, high: 9, log: true}", "log: true needs low above 0"),
    "log type": (
        "dropout: {type: float, low: 0.1, high: 0.2, log: 10}",
        "1: dropout: log=10: must be true or false",
    ),
    "log step": (
        "dropout: {type: float, low: 0.1, high: 0.2, log: true, step: 0.05}",
        "1: dropout: log and step cannot be combined; remove one of them",
    ),
    "log step int": ("warmup_steps: {type: int, low: 1, high: 9, log: true, step: 2}", "cannot be combined"),
    "step zero": ("dropout: {type: float, low: 0, high: 0.1, step: 0}", "1: dropout: step=0 must be above 0"),
    "step below": ("warmup_steps: {type: int, low: 0, high: 9, step: -1}", "step=-1 must be above 0"),
    "step wide": (
        "dropout: {type: float, low: 0, high: 0.1, step: 1}",
        "step=1 is larger than the range from 0 to",
    ),
    "step text": ("dropout: {type: float, low: 0, high: 0.1, step: x}", "step='x': must be a number above 0"),
    "step huge": (
        f"dropout: {{type: float, low: 0, high: 0.1, step: 1{'0' * 400}}}",
        "must be a number above 0",
    ),
    "step part": (
        "warmup_steps: {type: int, low: 0, high: 9, step: 1.5}",
        "step=1.5: must be a whole number of at",
    ),
    "float for int": (
        "train_batch_size: {type: float, low: 1, high: 9}",
        "write type: int instead of type: float",
    ),
    "part for int": (
        "train_batch_size: {type: int, low: 1.5, high: 9}",
        "low=1.5: must be a whole number of at",
    ),
    "part for int2": (
        "max_grad_norm: {type: int, low: 0.5, high: 2}",
        "low=0.5: type: int takes whole numbers only",
    ),
    "range for bool": ("spec_augment: {type: int, low: 0, high: 1}", "{type: choice, values: [true, false]}"),
    "range for text": (
        "precision: {type: int, low: 0, high: 1}",
        "precision: has no range; write {type: choice",
    ),
    "auto": (
        "dropout: {type: float, low: auto, high: 0.1}",
        "low: auto is known for a learning_rate of type",
    ),
    # Choices
    "no values": ("dropout: {type: choice}", "1: dropout: values is missing; add values: [...]"),
    "empty values": ("dropout: {type: choice, values: []}", "1: dropout: values is empty"),
    "values": ("dropout: {type: choice, values: 0.1}", "1: dropout: values must be a list"),
    "double": ("dropout: {type: choice, values: [0.1, 1e-1, 0.2]}", "values holds 0.1 more than once"),
    "value": (
        "train_batch_size:\n  type: choice\n  values:\n  - 4\n  - x",
        "5: train_batch_size: values: 'x': must",
    ),
    "value2": (
        "scheduler_type: {type: choice, values: [linear, sine]}",
        "values: 'sine': must be one of linear",
    ),
    # Conditions
    "when text": (
        LR + "dropout: {type: choice, values: [0, 0.1], when: yes}",
        "2: dropout: when: must be a mapping",
    ),
    "when name": (
        LR + "dropout:\n  type: choice\n  values: [0, 0.1]\n  when: {spec_augmet: true}",
        "5: dropout: when: spec_augmet: unknown setting 'spec_augmet'; did you mean spec_augment?",
    ),
    "when value": (
        f"{LR}{AUGMENT}dropout: {{type: choice, values: [0, 0.1], when: {{spec_augment: 1}}}}",
        "3: dropout: when: spec_augment=1: must be true or false",
    ),
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
    "when rate": (
        LR + "dropout: {type: choice, values: [0, 0.1], when: {learning_rate: 1e-4}}",
        "2: dropout: when: learning_rate: cannot decide what is searched",
    ),
    "when workers": (
        LR + "dropout: {type: choice, values: [0, 0.1], when: {workers: 2}}",
        "2: dropout: when: workers: is set by the search, so that nothing can depend on it",
    ),
    "when fixed": (
        LR
        + "group_by_length: true\ndropout: {type: choice, values: [0, 0.1], when: {group_by_length: false}}",
        "3: dropout: is never searched, where group_by_length is false: group_by_length is true here; search or set it",
    ),
    "when usual": (
        LR + "mask_time_prob: {type: float, low: 0, high: 1, when: {spec_augment: true}}",
        "2: mask_time_prob: is never searched, where spec_augment is true: spec_augment is false here",
    ),
    "augmentation off": (
        LR + "augment_speed: {type: float, low: 0, high: 0.4}",
        "2: augment_speed: is searched without effect: augment is 0; set it to a share of the clips, or fix augment_sp",
    ),
    "augmentation of no strength": (
        LR + "augment: {type: float, low: 0.5, high: 1}\naugment_strength: 0",
        "2: augment: is searched without effect: augment_strength is 0; set it to a number above 0, or leave",
    ),
    "noises searched": (
        LR + "noise_dir: {type: choice, values: [one, two]}",
        "2: noise_dir: can be fixed but not searched: all trials share the noises; search augment_noise",
    ),
    "when itself": (
        LR + "dropout: {type: choice, values: [0, 0.1], when: {dropout: 0}}",
        "2: dropout: when: the conditions run in a circle, dropout -> dropout; remove one",
    ),
    "when mistaken": (
        LR + MASK.replace("choice", "chioce"),
        "2: spec_augment: type='chioce': must be float, int or choice; did you mean choice?",
    ),
    "when circle": (
        LR + "spec_augment: {type: choice, values: [false, true], when: {group_by_length: true}}\n"
        "group_by_length: {type: choice, values: [false, true], when: {lowercase: true}}\n"
        "lowercase: {type: choice, values: [false, true], when: {spec_augment: true}}\n",
        "2: spec_augment: when: the conditions run in a circle, spec_augment -> group_by_length -> lowercase -> spec_",
    ),
    "range behind": (
        f"{LR}{AUGMENT}dropout:\n- {{type: choice, values: [0, 0.1]}}\n"
        "- {type: choice, values: [0.2, 0.3], when: {spec_augment: true}}",
        "5: dropout: is never searched: its condition never holds, or a range before it holds wherever it does",
    ),
    "two types": (
        f"{LR}{AUGMENT}dropout:\n- {{type: choice, values: [0, 0.1], when: {{spec_augment: true}}}}\n"
        "- {type: float, low: 0.2, high: 0.3}",
        "3: dropout: its ranges must be of one type",
    ),
    "range of several": (
        f"{LR}{AUGMENT}dropout:\n- {{type: float, low: 0, high: 0.1, when: {{spec_augment: true}}}}\n"
        "- {type: float, low: 0.3, high: 0.2}",
        "5: dropout: low=0.3 is above high=0.2; swap them",
    ),
    "point under a condition": (
        f"{LR}{MASK}try_first:\n- {{spec_augment: false, mask_time_prob: 0.1}}",
        "5: try_first: point 1: mask_time_prob: is searched only where spec_augment is true; remove it here",
    ),
    # Optimisers and schedules
    "beta of adafactor": (
        LR + "optimizer: adafactor\nadam_beta2: {type: float, low: 0.9, high: 0.999}",
        "3: adam_beta2: is searched without effect: optimizer is adafactor; set it to adamw or adamw_8bit, or fix adam",
    ),
    "decay of linear": (
        LR + "decay_ratio: {type: float, low: 0.1, high: 0.3}",
        "2: decay_ratio: is searched without effect: scheduler_type is linear; set it to warmup_stable_decay, or fix",
    ),
    "beta under a condition": (
        LR + "optimizer: {type: choice, values: [adamw, adafactor]}\n"
        "adam_beta2: {type: float, low: 0.9, high: 0.999, when: {optimizer: adafactor}}",
        "3: adam_beta2: is searched without effect: optimizer is adafactor; set it to adamw or adamw_8bit",
    ),
    "beta of some optimisers": (
        LR + "optimizer: {type: choice, values: [adafactor, adamw]}\n"
        "adam_beta2: {type: float, low: 0.9, high: 0.999}",
        "3: adam_beta2: is searched without effect: optimizer can be adafactor; add when: {optimizer: [adamw, ad",
    ),
    "decay of some schedules": (
        LR + "scheduler_type: {type: choice, values: [cosine, warmup_stable_decay]}\n"
        "decay_ratio: {type: float, low: 0.1, high: 0.3}",
        "3: decay_ratio: is searched without effect: scheduler_type can be cosine; add when: {scheduler_type: wa",
    ),
    # How much is trained
    "rank of all weights": (
        LR + "lora_rank: {type: choice, values: [8, 16]}",
        "2: lora_rank: is searched without effect: method is full; set it to lora, or fix lora_rank",
    ),
    "rank without a condition": (
        LR + "method: {type: choice, values: [full, lora]}\nlora_rank: {type: choice, values: [8, 16]}",
        "3: lora_rank: is searched without effect: method can be full; add when: {method: lora}",
    ),
    "rank under another condition": (
        LR + "method: {type: choice, values: [full, decoder, lora]}\n"
        "lora_rank: {type: choice, values: [8, 16], when: {method: [decoder, lora]}}",
        "3: lora_rank: is searched without effect: method can be decoder; add when: {method: lora}",
    ),
    "layers of the decoder": (
        LR + "method: {type: choice, values: [full, decoder, lora]}\n"
        "freeze_encoder_layers: {type: int, low: 0, high: 2}",
        "3: freeze_encoder_layers: is searched without effect: method can be decoder; add when: {method: [full, lora]}",
    ),
    # Priors
    "prior outside": (
        "dropout: {type: float, low: 0, high: 0.1, prior: 0.2}",
        "1: dropout: prior: mean=0.2: must lie in the range (0 to 0.1); move it or widen the range",
    ),
    "prior text": (
        "dropout: {type: float, low: 0, high: 0.1, prior: x}",
        "prior: mean='x': must be a number",
    ),
    "prior auto": ("dropout: {type: float, low: 0, high: 0.1, prior: auto}", "mean='auto': must be a number"),
    "prior key": (
        "dropout: {type: float, low: 0, high: 0.1, prior: {mean: 0.1, sd: 1}}",
        "1: dropout: prior: unknown key 'sd'; a prior has mean, spread",
    ),
    "prior mean": ("dropout: {type: float, low: 0, high: 0.1, prior: {spread: 1}}", "prior: mean is missing"),
    "prior spread": (
        "dropout: {type: float, low: 0, high: 0.1, prior: {mean: 0.1, spread: 0}}",
        "prior: spread=0: must be above 0",
    ),
    "prior factor": (
        "learning_rate: {type: float, low: 1e-5, high: 1e-3, log: true, prior: {mean: 1e-4, spread: 1}}",
        "prior: spread=1: must be above 1, a factor, since the scale is logarithmic",
    ),
    "prior of a choice": (
        "dropout: {type: choice, values: [0, 0.1], prior: 0.1}",
        "1: dropout: unknown key 'prior'; choice has type, values, when",
    ),
    # Settings of data sources
    "source twice": (
        LR + "weight.fleurs: 2\nsources: {fleurs: {weight: 0.5}}",
        "3: weight.fleurs: given twice, first in line 2",
    ),
    "sources text": (LR + "sources: fleurs", "2: sources: must be a mapping of sources and their settings"),
    "source text": (LR + "sources: {fleurs: 1}", "2: sources: fleurs: must be a mapping of settings"),
    "source key": (
        LR + "sources:\n  fleurs: {wait: 0.5}",
        "3: sources: fleurs: unknown setting 'wait'; a source has weight",
    ),
    "source range": (
        LR + "sources:\n  fleurs: {weight: {type: float, low: -1, high: 1}}",
        "3: weight.fleurs: low=-1: must be a number from 0 to 1000",
    ),
    # Points to try first
    "points": (LR + "try_first: 3", "2: try_first: must be a list of points"),
    "point": (LR + "try_first: [3]", "2: try_first: point 1: must be a mapping"),
    "point key": (
        LR + "try_first:\n- {learning_rat: 1e-4}",
        "learning_rat: is not searched in this file; did you",
    ),
    "point key2": (
        LR + "try_first:\n- {dropout: 0.1}",
        "3: try_first: point 1: dropout: is not searched in this",
    ),
    "point fixed": (
        LR + "dropout: 0\ntry_first: [{dropout: 0.1}]",
        "dropout: is fixed in line 2; remove it here",
    ),
    "point value": (
        LR + "try_first:\n- {learning_rate: high}",
        "learning_rate='high': must be a number above 0",
    ),
    "point outside": (
        LR + "try_first:\n- {}\n- {learning_rate: 1}",
        "4: try_first: point 2: learning_rate=1: outside the searched range (1e-05 to 0.001, log scale)",
    ),
    "point grid": (
        "dropout: {type: float, low: 0, high: 0.2, step: 0.1}\ntry_first: [{dropout: 0.15}]",
        "2: try_first: point 1: dropout=0.15: outside the searched range (0 to 0.2, in steps of 0.1)",
    ),
    "point missing": (
        LR + "train_batch_size: {type: choice, values: [32, 64]}\ntry_first: [{learning_rate: 1e-4}]",
        "3: try_first: point 1: train_batch_size is missing, and the usual 8 is out of range; add train_",
    ),
    "points twice": (LR + "try_first: []\npoints: []", "3: points: points to try first are given twice"),
    # Settings of scheduler and searcher
    "scheduler": (
        LR + "scheduler: asha",
        "2: scheduler: must be a mapping with some of reduction_factor, rungs",
    ),
    "scheduler key": (
        LR + "scheduler: {rung: 3}",
        "2: scheduler: unknown setting 'rung'; did you mean rungs?",
    ),
    "scheduler key2": (LR + "scheduler: {x: 3}", "unknown setting 'x'; settings are reduction_factor, rungs"),
    "factor": (
        LR + "scheduler: {reduction_factor: 1}",
        "reduction_factor=1: must be a number from 1.1 to 100",
    ),
    "rungs": (LR + "scheduler: {rungs: 2.5}", "rungs=2.5: must be a whole number from 1 to 10"),
    "rungs2": (LR + "scheduler: {rungs: many}", "rungs='many': must be a whole number from 1 to 10"),
    "rungs3": (LR + "scheduler: {rungs: [1]}", "rungs=['...']: must be a whole number from 1 to 10"),
    "startup": (LR + "searcher: {startup_trials: 0}", "startup_trials=0: must be a whole number from 1 to"),
    "multivariate": (LR + "searcher: {multivariate: 1}", "multivariate=1: must be true or false"),
    # Settings that do not fit each other
    "warmup": (
        "warmup_ratio: {type: float, low: 0, high: 0.1}\nwarmup_steps: 100",
        "1: warmup_ratio: is searched without effect: warmup_steps goes before it; remove one",
    ),
    "mask": (
        LR + "mask_time_prob: {type: float, low: 0, high: 1}",
        "2: mask_time_prob: is searched without effect",
    ),
}


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


def test_a_value_that_refers_to_itself_is_a_problem_like_any_other(load: Load) -> None:
    with pytest.raises(SpaceError, match="must be a number"):
        load("dropout: {type: choice, values: &a [*a]}")

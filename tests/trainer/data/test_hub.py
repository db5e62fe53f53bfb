"""Models and data sets from the hub: the real client libraries against a local server of the hub's shape."""

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import Hub, RefusedError, serve
from make_data import embedded, examples, write_clips, write_hub_parquet, write_manifest, write_processor

ROOT = Path(__file__).resolve().parents[3]
ROWS = examples(12)
README = """---
configs:
- config_name: be_by
  data_files:
  - {split: train, path: be_by/train.parquet}
  - {split: validation, path: be_by/validation.parquet}
  - {split: test, path: be_by/test.parquet}
- config_name: en_us
  data_files:
  - {split: train, path: en_us/train.parquet}
---
# A data set
"""


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with two data sets and two models."""
    root = tmp_path_factory.mktemp("hub")
    clips = root / "clips"
    write_clips(clips, ROWS)
    plain = root / "datasets" / "org" / "speech" / "main"
    write_hub_parquet(plain / "be_by", ROWS, clips)
    write_hub_parquet(plain / "en_us", ROWS[:4], clips)
    (plain / "README.md").write_text(README)
    # As google/fleurs was published: a script, and a Parquet copy made by the hub on a branch of its own.
    scripted = root / "datasets" / "org" / "scripted"
    (scripted / "main").mkdir(parents=True)
    (scripted / "main" / "scripted.py").write_text("raise SystemExit('never run')")
    for name, rows in (("be_by", ROWS), ("en_us", ROWS[:4])):
        for split in ("train", "validation", "test"):
            folder = scripted / "refs+convert+parquet" / name / split
            folder.mkdir(parents=True)
            part = [row for row in rows if row.split == split]
            write_manifest(folder / "0000.parquet", embedded(part, clips))
    write_model(root / "models" / "org" / "whisper-mini" / "main")
    old = root / "models" / "org" / "whisper-old" / "main"
    shutil.copytree(root / "models" / "org" / "whisper-mini" / "main", old)
    (old / "model.safetensors").rename(old / "pytorch_model.bin")
    shutil.copytree(root / "models" / "org" / "whisper-mini", root / "models" / "org" / "whisper-gated")
    bert = root / "models" / "org" / "bert" / "main"
    bert.mkdir(parents=True)
    (bert / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))

    def fault(request: str) -> None:
        if request.startswith("GET /org/whisper-gated/resolve/"):
            raise RefusedError(403, "not for you")

    with serve(root) as server:
        server.fault = fault
        yield server


def write_model(folder: Path) -> None:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    write_processor(folder)
    WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder)).save_pretrained(folder)


def run(url: str, home: Path, code: str) -> Any:
    """The JSON that `code` prints in a new process with the hub at `url`, or the line of a `UserError`."""
    script = f"""
import json, sys
sys.path.insert(0, {str(ROOT)!r})
from trainer.config import TrainConfig
from trainer.errors import UserError
try:
{textwrap.indent(textwrap.dedent(code), "    ")}
except UserError as error:
    print(json.dumps(type(error).__name__ + ": " + str(error)))
"""
    hidden = ("proxy", "hf_", "hugging", "transformers_offline")
    known = [name for name in os.environ if not name.lower().startswith(hidden)]
    environment = {name: os.environ[name] for name in known if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


LOAD_CLIPS = """
from trainer.data.audio import read_audio
from trainer.data.clips import load_clips
from trainer.model.pretrained import fetch_model, load_model_config
from trainer.model.processor import load_processor

def load(**settings):
    table = load_clips(TrainConfig(**settings))
    return {
        role: [(clip.name, clip.text, len(read_audio(clip.source()))) for clip in clips]
        for role, clips in table.splits.items()
    }, table.notes

def told(call):
    try:
        eval(call)
    except UserError as error:
        return type(error).__name__ + ": " + str(error)

"""


def expected(rows: list[Any] = ROWS) -> dict[str, list[list[Any]]]:
    lengths = {row.file: round((0.3 + 0.02 * number) * 16_000) for number, row in enumerate(ROWS)}
    return {
        split: [[row.file, row.text, lengths[row.file]] for row in rows if row.split == split]
        for split in ("train", "validation", "test")
    }


def downloaded(hub: Hub, suffix: str) -> list[str]:
    return [line for line in hub.requests if line.startswith("GET") and line.endswith(suffix)]


REFUSALS = {
    "load(data='org/nothing')": "data='org/nothing': no such folder here, and the hub data set cannot",
    "load(data='org/speech', data_config='xx')": "'xx' not found. Available: ['be_by', 'en_us']",
    "load(data='org/speech')": "Config name is missing. Please pick one among the available configs",
    "load(data='org/speech', data_config='be_by', train_split='x')": "no split 'x'; it has train",
    "load(data='org/scripted', data_config='de_de')": "is not one of its configurations: be_by, en_us; set",
    "load_model_config('org/nothing')": "ModelError: model='org/nothing': no such folder here and no such",
    "load_model_config('org/bert')": "only Whisper models can be tuned",
    "fetch_model('org/bert', weights=True)": "ModelError: model='org/bert': the repository has no model.",
    "fetch_model('org/whisper-gated', weights=False)": "ModelError: model='org/whisper-gated': cannot be",
    "fetch_model('org/whisper-old', weights=True)": "ModelError: model='org/whisper-old': pytorch_model.bin",
}


def test_what_is_had_is_kept_and_what_cannot_be_had_is_one_line(hub: Hub, tmp_path: Path) -> None:
    """A second process finds the download in Hugging Face's cache; most seconds of each are imports."""
    calls = (f"load(data='org/{name}', data_config='be_by')" for name in ("speech", "scripted"))
    code = LOAD_CLIPS + f"found = [{', '.join(calls)}]\n"
    asked = f"print(json.dumps([found, [told(call) for call in {list(REFUSALS)}]]))"
    found, messages = run(hub.url, tmp_path, code + asked)
    for message, words in zip(messages, REFUSALS.values(), strict=True):
        assert words in message and "\n" not in message
    assert "hf download org/whisper-old --local-dir whisper-old" in messages[-1]
    assert messages[-1].endswith('save_pretrained(sys.argv[1])" whisper-old')
    assert not any("resolve" in line and "pytorch_model.bin" in line for line in hub.requests)
    told = "org/scripted needs a loading script, so its Parquet copy (refs/convert/parquet) was used"
    assert found == [[expected(), []], [expected(), [told]]]
    downloads = downloaded(hub, ".parquet")
    assert not any("en_us" in line for line in downloads)
    assert run(hub.url, tmp_path, code + "print(json.dumps(found))") == found
    assert downloaded(hub, ".parquet") == downloads


def test_the_hub_goes_away_after_the_first_run(hub: Hub, tmp_path: Path) -> None:
    """A model that was fetched is there; small files of another are not taken for all of it."""
    code = LOAD_CLIPS + textwrap.dedent("""
        import time
        from trainer.model.whisper import load_model

        config = TrainConfig(model="org/whisper-mini")
        started = time.monotonic()
        load_model(config, load_processor(config))
        seconds = time.monotonic() - started
        time.sleep = lambda seconds: None  # `datasets` waits 23 seconds in all before it gives up
    """)
    small = "print(json.dumps(told(\"fetch_model('org/whisper-old', weights=False)\")))"
    assert run(hub.url, tmp_path, code + small) is None
    weights = downloaded(hub, ".safetensors")
    calls = {
        "fetch_model('org/whisper-old', weights=True)": "ModelError: model='org/whisper-old': ",
        "load_processor(TrainConfig(model='org/bert'))": "ModelError: model='org/bert': the hub cannot be",
        "load(data='org/speech', data_config='be_by')": "DataError: data='org/speech', data_config='be_by': no",
    }
    asked = f"print(json.dumps([seconds, *[told(call) for call in {list(calls)}]]))"
    seconds, *messages = run("http://127.0.0.1:9", tmp_path, code + asked)
    assert seconds < 60  # transformers alone took 330 seconds
    assert downloaded(hub, ".safetensors") == weights
    for message, words in zip(messages, calls.values(), strict=True):
        assert message.startswith(words) and "pickle" not in message and "\n" not in message


STREAM = """
import itertools
from trainer.data.clips import load_clips

def open_stream(**settings):
    settings |= {"data_config": "be_by", "streaming": True, "audio_window": 2, "max_samples": 8}
    return load_clips(TrainConfig(**settings))

def names(table, count):
    return [clip.name for clip in itertools.islice(table.stream.clips(1, 2), count)]

"""


def test_training_splits_are_streamed_and_a_sample_is_looked_at(hub: Hub, tmp_path: Path) -> None:
    """Nothing of them stays; the others are kept, and read once."""
    code = STREAM + textwrap.dedent(f"""
        from trainer.data.streaming.stream import is_far, keep_sample
        from trainer.inspection.inspection import inspect_data

        found, cache = [], {str(tmp_path / "cache")!r}
        for data in ("org/speech", "org/scripted"):
            table = open_stream(data=data, cache_dir=cache)
            found.append({{role: sorted(clip.name for clip in clips) for role, clips in table.splits.items()}})
            found[-1]["train"] = sorted(names(table, 6))
    """)
    sample = textwrap.dedent("""
        config = TrainConfig(data="org/speech", data_config="be_by", cache_dir=cache)
        assert is_far(config.data) and is_far("MLCommons/peoples_speech_v1.0")
        assert not is_far("demo") and not is_far("clips.csv")
        here, note = keep_sample(config, 4)
        looked = inspect_data(here, with_model=False)
        print(json.dumps([found, {name: one.clips for name, one in looked.splits.items()}, note]))
    """)
    files = {split: sorted(name for name, *_ in rows) for split, rows in expected().items()}
    found, looked, note = run(hub.url, tmp_path, code + sample)
    assert found == [files, files]
    assert looked == {"train": 2, "validation": 1, "test": 1}
    assert "the rest was not downloaded" in note
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.suffix == ".parquet"]
    before = len(hub.requests)
    assert run(hub.url, tmp_path, code + "print(json.dumps(found))") == [files, files]
    again = [line for line in hub.requests[before:] if "resolve" in line and "train" not in line.lower()]
    assert not any(line.startswith("GET") and "test" in line for line in again)

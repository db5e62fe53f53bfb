"""Models and data sets from the hub: the real client libraries against a local server of the hub's shape."""

from __future__ import annotations

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
from hub_server import DroppedError, Hub, RefusedError, serve
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
    bert = root / "models" / "org" / "bert" / "main"
    bert.mkdir(parents=True)
    (bert / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    with serve(root) as server:
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
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith(hidden)}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": url, "HF_HOME": str(home), "NO_PROXY": "*"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.strip().splitlines()[-1])


LOAD_CLIPS = """
from pathlib import Path
from trainer.data.audio import read_audio
from trainer.data.clips import load_clips

def load(**settings):
    table = load_clips(TrainConfig(**settings))
    print(json.dumps({
        "splits": {
            role: [(clip.name, clip.text, len(read_audio(clip.source()))) for clip in clips]
            for role, clips in table.splits.items()
        },
        "notes": table.notes,
    }))

"""


def expected(rows: list[Any] = ROWS) -> dict[str, list[list[Any]]]:
    lengths = {row.file: round((0.3 + 0.02 * number) * 16_000) for number, row in enumerate(ROWS)}
    return {
        split: [[row.file, row.text, lengths[row.file]] for row in rows if row.split == split]
        for split in ("train", "validation", "test")
    }


def test_data_set_with_a_configuration(hub: Hub, tmp_path: Path) -> None:
    code = LOAD_CLIPS + "load(data='org/speech', data_config='be_by')"
    found = run(hub.url, tmp_path, code)
    assert found["splits"] == expected()
    assert found["notes"] == []
    assert not any("en_us" in line and "resolve" in line for line in hub.requests)
    # A second process finds the download in Hugging Face's cache.
    downloads = [line for line in hub.requests if line.startswith("GET") and line.endswith(".parquet")]
    assert run(hub.url, tmp_path, code) == found
    assert [
        line for line in hub.requests if line.startswith("GET") and line.endswith(".parquet")
    ] == downloads


def test_data_set_that_has_a_script(hub: Hub, tmp_path: Path) -> None:
    found = run(hub.url, tmp_path, LOAD_CLIPS + "load(data='org/scripted', data_config='be_by')")
    assert found["splits"] == expected()
    assert found["notes"] == [
        "org/scripted needs a loading script, so its Parquet copy (refs/convert/parquet) was used"
    ]
    # Again, now that the copy is in Hugging Face's cache.
    assert run(hub.url, tmp_path, LOAD_CLIPS + "load(data='org/scripted', data_config='be_by')") == found


REFUSALS = {
    "load(data='org/nothing')": (
        "data='org/nothing': no such folder here, and the hub data set cannot be loaded"
    ),
    "load(data='org/speech', data_config='xx')": (
        "BuilderConfig 'xx' not found. Available: ['be_by', 'en_us']"
    ),
    "load(data='org/speech')": "Config name is missing. Please pick one among the available configs",
    "load(data='org/speech', data_config='be_by', train_split='x')": (
        "no split 'x'; it has train, validation"
    ),
    "load(data='org/scripted', data_config='de_de')": (
        "data_config='de_de' is not one of its configurations: be_by, en_us; set data_config"
    ),
    "load_model_config('org/nothing')": (
        "ModelError: model='org/nothing': no such folder here and no such model on the hub"
    ),
    "load_model_config('org/bert')": "only Whisper models can be tuned",
    "fetch_model('org/bert', weights=True)": (
        "ModelError: model='org/bert': the repository has no model.safetensors; "
    ),
    "fetch_model('org/whisper-old', weights=True)": (
        "ModelError: model='org/whisper-old': pytorch_model.bin is a pickle, "
    ),
}


def test_what_cannot_be_had_is_one_line(hub: Hub, tmp_path: Path) -> None:
    """All in one process: most of its seconds are imports."""
    code = f"""
from trainer.model.pretrained import fetch_model, load_model_config

def told(call):
    try:
        eval(call)
    except UserError as error:
        return type(error).__name__ + ": " + str(error)

print(json.dumps([told(call) for call in {list(REFUSALS)}]))
"""
    messages = run(hub.url, tmp_path, LOAD_CLIPS + code)
    for message, words in zip(messages, REFUSALS.values(), strict=True):
        assert words in message and "\n" not in message
    assert "hf download org/whisper-old --local-dir whisper-old" in messages[-1]
    assert messages[-1].endswith('save_pretrained(sys.argv[1])" whisper-old')
    assert not any("resolve" in line and "pytorch_model.bin" in line for line in hub.requests)


def test_small_files_in_the_cache_are_not_taken_for_all_that_there_is(hub: Hub, tmp_path: Path) -> None:
    code = (
        "from trainer.model.pretrained import fetch_model; "
        "print(json.dumps(fetch_model('org/whisper-old', weights={})))"
    )
    assert "org--whisper-old" in run(hub.url, tmp_path, code.format(False))
    message = run("http://127.0.0.1:9", tmp_path, code.format(True))
    assert message.startswith("ModelError: model='org/whisper-old': ")
    assert "pickle" not in message and "\n" not in message


def test_the_hub_refuses_a_file(hub: Hub, tmp_path: Path) -> None:
    """What `transcribe` fetches before it loads anything."""

    def fault(request: str) -> None:
        if request.startswith("GET") and "/resolve/" in request:
            raise RefusedError(403, "not for you")

    hub.fault = fault
    code = "from trainer.model.pretrained import fetch_model; fetch_model('org/whisper-mini', weights=False)"
    try:
        message = run(hub.url, tmp_path, code)
    finally:
        hub.fault = lambda request: None
    assert message.startswith("ModelError: model='org/whisper-mini': cannot be fetched from the hub: ")
    assert "\n" not in message


def test_no_hub_at_all(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9"
    code = "from trainer.model.processor import load_processor\n"
    message = run(url, tmp_path, code + "load_processor(TrainConfig(model='org/whisper-mini'))")
    assert message.startswith("ModelError: model='org/whisper-mini': the hub cannot be reached and the model")
    assert "\n" not in message
    # `datasets` waits 23 seconds in all before it gives up.
    impatient = "import time; time.sleep = lambda seconds: None\n"
    message = run(url, tmp_path, impatient + LOAD_CLIPS + "load(data='org/speech', data_config='be_by')")
    assert message.startswith("DataError: data='org/speech', data_config='be_by': no such folder here")
    assert "\n" not in message


def test_the_hub_goes_away_after_the_first_run(hub: Hub, tmp_path: Path) -> None:
    code = """
        import time
        from trainer.model.whisper import load_model
        from trainer.model.processor import load_processor

        config = TrainConfig(model="org/whisper-mini")
        started = time.monotonic()
        load_model(config, load_processor(config))
        print(json.dumps(time.monotonic() - started))
    """
    assert run(hub.url, tmp_path, code) > 0
    weights = [line for line in hub.requests if line.startswith("GET") and line.endswith(".safetensors")]
    assert run("http://127.0.0.1:9", tmp_path, code) < 60  # transformers alone took 330 seconds
    assert [
        line for line in hub.requests if line.startswith("GET") and line.endswith(".safetensors")
    ] == weights


STREAM = """
import itertools, threading
import datasets.config
from trainer.data.clips import load_clips
from trainer.data.streaming import shards

def open_stream(**settings):
    settings |= {"data_config": "be_by", "streaming": True, "audio_window": 2, "max_samples": 8}
    return load_clips(TrainConfig(**settings))

def names(table, count):
    return [clip.name for clip in itertools.islice(table.stream.clips(1, 2), count)]

"""


@pytest.mark.parametrize("data", ["org/speech", "org/scripted"])
def test_a_training_split_is_streamed(hub: Hub, tmp_path: Path, data: str) -> None:
    """Nothing of it stays; the others are kept, and read once."""
    code = f"""
        table = open_stream(data={data!r}, cache_dir={str(tmp_path / "cache")!r})
        found = {{role: sorted(clip.name for clip in clips) for role, clips in table.splits.items()}}
        print(json.dumps([found, sorted(names(table, 6))]))
    """
    code = STREAM + textwrap.dedent(code)
    files = {
        split: sorted(row.file for row in ROWS if row.split == split)
        for split in ("train", "validation", "test")
    }
    train = files.pop("train")
    assert run(hub.url, tmp_path, code) == [files, train]
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.suffix == ".parquet"]
    before = len(hub.requests)
    assert run(hub.url, tmp_path, code) == [files, train]
    again = [line for line in hub.requests[before:] if "resolve" in line and "train" not in line.lower()]
    assert not any(line.startswith("GET") and "test" in line for line in again)


@pytest.mark.slow
@pytest.mark.occasional
def test_a_stream_waits_while_the_hub_is_away(hub: Hub, tmp_path: Path) -> None:
    """And where it does not come back, one line says so."""
    flag = tmp_path / "away"

    def fault(request: str) -> None:
        if flag.exists():
            raise DroppedError

    code = STREAM + textwrap.dedent(f"""
        from pathlib import Path
        table, flag = open_stream(data="org/speech", cache_dir={str(tmp_path / "cache")!r}), Path({str(flag)!r})
        whole = names(table, 12)
        datasets.config.STREAMING_READ_RETRY_INTERVAL = datasets.config.STREAMING_OPEN_RETRY_INTERVAL = 0.1
        shards._WAIT_SECONDS = 0.2
        flag.touch()
        threading.Timer(4, flag.unlink).start()
        assert names(table, 12) == whole
        assert not flag.exists()
        shards.PATIENCE_SECONDS = 1
        flag.touch()
        names(table, 12)
    """)
    hub.fault = fault
    try:
        message = run(hub.url, tmp_path, code)
    finally:
        hub.fault = lambda request: None
    assert message.startswith("DataError: data='org/speech': cannot be read for 1 s: ")
    assert "\n" not in message


def test_a_sample_is_looked_at_without_a_download(hub: Hub, tmp_path: Path) -> None:
    config = {"data_config": "be_by", "cache_dir": str(tmp_path / "cache")}
    code = f"""
        from trainer.data.streaming.stream import is_far, keep_sample
        from trainer.inspection.inspection import inspect_data
        config = TrainConfig(data="org/speech", **{config})
        assert is_far(config.data) and not is_far("demo") and not is_far("clips.csv")
        here, note = keep_sample(config, 4)
        found = inspect_data(here, with_model=False)
        print(json.dumps([{{name: one.clips for name, one in found.splits.items()}}, note]))
    """
    splits, note = run(hub.url, tmp_path, code)
    assert splits == {"train": 2, "validation": 1, "test": 1}
    assert "the rest was not downloaded" in note
    assert not [path for path in (tmp_path / "hub").rglob("*") if path.suffix == ".parquet"]

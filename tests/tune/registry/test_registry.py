"""Models in MLflow's registry: logged on the winner's run, registered, loaded by name; on failure nothing is left."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import pyarrow.parquet
import pytest
import soundfile
import torch
from made_logs import MadeLog
from mlflow_server import Server, client_of
from registered_models import DEMO, EVALUATION, as_file, clips, export_demo, heard
from s3_server import KEYS, s3_server
from safetensors.torch import load_file

from trainer.data.audio import SAMPLE_RATE, read_audio
from tune.cli import main
from tune.commands.register import register_parser
from tune.experiments.events import ExportChosen, FinalRoundPlanned, ResultsWritten, TrialsOver
from tune.experiments.mlflow_store import (
    default_artifact_root,
    default_tracking_uri,
    relocate_artifacts,
)
from tune.experiments.results import run_ids, write_results
from tune.experiments.saved import find_experiment
from tune.experiments.settings import read_tracking_uri
from tune.experiments.storage import Storage
from tune.registry.register import Registered, check_names, register_model
from tune.util.errors import ConfigError, ModelError, TrackingError

NAME = "whisper demo"


class Shop:
    """An experiment with a winner's run, and a model that was registered on it."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        made = MadeLog(folder or root / "experiments" / "spring")
        self.folder, self.uri = made.folder, made.uri
        self.storage = self.folder.parent
        self.run_id = with_a_repeat(made)
        self.model = export_demo(root / "model")

    def register(self, **changes: Any) -> Registered:
        arguments: dict[str, Any] = {"tracking_uri": self.uri, "name": NAME, "run_id": self.run_id}
        return register_model(self.model, **(arguments | changes))

    @property
    def client(self) -> Any:
        return client_of(self.uri)


def with_a_repeat(made: MadeLog) -> str:
    """A search whose winner is the repeat 003-r1, delivered; that one's run in MLflow."""
    made.session(trials=1, finalists=1, repeats=1)
    made.trial("003", 50.0, 30.0, 12.0)
    planned = {"003-r1": {"learning_rate": 1e-3, "seed": 1}}
    made.append(TrialsOver(), FinalRoundPlanned(finalists=["003"], repeats=planned))
    made.trial("003-r1", 50.0, 30.0, 11.0, seed=1)
    made.append(ExportChosen(run="003-r1"))
    made.finish()
    made.deliver()
    write_results(made.saved.folder, made.log.state)
    made.append(ResultsWritten())
    made.deliver()
    made.close()
    return str(run_ids(made.folder)["003-r1"])


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    shop = Shop(tmp_path_factory.mktemp("shop"))
    shop.register(alias="champion")
    return shop


@pytest.fixture(scope="module")
def model(shop: Shop) -> Any:
    """What `mlflow.pyfunc.load_model` makes of the champion."""
    return load(f"models:/{NAME}@champion", shop.uri)


@pytest.fixture
def own_shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def load(uri: str, store: str, flavour: str = "pyfunc") -> Any:
    """A model by its `models:/` address."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(store)
    try:
        return getattr(mlflow, flavour).load_model(uri)
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]


def test_it_hears_what_the_pipeline_hears(shop: Shop, model: Any) -> None:
    recordings = clips(4)
    expected = heard(shop.model, recordings)
    assert len({*expected}) == 4
    assert model.predict(recordings[0]) == expected[:1]
    assert model.predict(recordings) == expected


@pytest.mark.parametrize(
    ("kind", "rate", "channels"), [("WAV", 44_100, 2), ("WAV", 8_000, 1), ("FLAC", 48_000, 1), ("MP3", 22_050, 1)]
)  # fmt: skip
def test_files_of_other_kinds_and_rates(kind: str, rate: int, channels: int, shop: Shop, model: Any) -> None:
    recordings = [as_file(clip, kind, rate, channels) for clip in clips(2)]
    assert model.predict(recordings) == heard(shop.model, recordings)


def requests(first: str, second: str) -> list[dict[str, Any]]:
    """The ways in which MLflow's server takes two recordings."""
    return [
        {"inputs": [first, second]},
        {"inputs": [{"audio": first}, {"audio": second}]},
        {"instances": [first, second]},
        {"dataframe_split": {"columns": ["audio"], "data": [[first], [second]]}},
        {"dataframe_split": {"data": [[first], [second]]}},
        {"dataframe_records": [{"audio": first}, {"audio": second}]},
    ]


@pytest.mark.parametrize("shape", range(len(requests("", ""))))
def test_every_shape_of_a_request(shape: int, shop: Shop, model: Any) -> None:
    from mlflow.pyfunc.scoring_server import invocations

    recordings = clips(2)
    body = requests(*(base64.b64encode(recording).decode() for recording in recordings))[shape]
    answer = invocations(json.dumps(body), "application/json", model, model.metadata.get_input_schema())
    assert (answer.status, json.loads(answer.response)) == (
        200,
        {"predictions": heard(shop.model, recordings)},
    )


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"", "no samples|cannot be decoded"),
        (b"no audio at all", "recording 2: cannot be decoded as WAV, FLAC, OGG or MP3"),
        (b"aGVsbG8=", "recording 2: cannot be decoded"),
        (b"QUJD" * 100 + b"=", "recording 2: cannot be decoded"),  # begins like base64 and is none
    ],
)
def test_what_is_no_audio(content: bytes, told: str, model: Any) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match=told) as caught:
        model.predict([clips(1)[0], content])
    assert caught.value.error_code == "INVALID_PARAMETER_VALUE"


def test_a_recording_longer_than_the_window(shop: Shop, model: Any) -> None:
    """The demo hears 4 s at once; transformers' pipeline by itself loses or refuses what comes after."""
    rows = pyarrow.parquet.read_table(DEMO / "data" / "test.parquet").to_pylist()[:25]
    recordings = [row["audio"]["bytes"] for row in rows]
    pause = np.zeros(SAMPLE_RATE // 2, dtype=np.float32)
    whole = np.concatenate([part for clip in recordings for part in (read_audio(clip), pause)])
    file = io.BytesIO()
    soundfile.write(file, whole, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    (text,) = model.predict(file.getvalue())
    said = " ".join(row["text"] for row in rows)
    alone = jiwer.wer(said, " ".join(heard(shop.model, recordings)))
    assert jiwer.wer(said, text) < alone + 0.1, "as good as each by itself"
    silence = io.BytesIO()
    soundfile.write(silence, np.zeros(5 * SAMPLE_RATE), SAMPLE_RATE, format="FLAC")
    assert model.predict(silence.getvalue()) == [""]


@pytest.mark.parametrize(
    ("language", "task"), [("de", "transcribe"), ("uk", "translate"), ("ja", "transcribe")]
)
def test_language_task_and_greedy_decoding_survive(
    language: str, task: str, own_shop: Shop, tmp_path: Path
) -> None:
    own_shop.model = export_demo(tmp_path / language, language=language, task=task)
    own_shop.register(alias="champion")
    uri = f"models:/{NAME}@champion"
    pipeline = load(uri, own_shop.uri, "transformers")
    generation = pipeline.model.generation_config
    assert (generation.language, generation.task, generation.num_beams) == (language, task, 1)
    from transformers import GenerationConfig

    assert generation.to_dict() == GenerationConfig.from_pretrained(own_shop.model).to_dict()
    recordings = clips(3)
    expected = heard(own_shop.model, recordings)
    assert load(uri, own_shop.uri).predict(recordings) == expected
    assert expected != heard(export_demo(tmp_path / "english"), recordings)  # the setting is heeded
    (version,) = own_shop.client.search_model_versions(f"name = '{NAME}'")
    assert (version.tags["language"], version.tags["task"]) == (language, task)
    gap = load(uri, own_shop.uri).metadata.flavors["python_function"]["config"]["gap"]
    assert gap == ("" if language == "ja" else " ")


def test_what_the_registry_says_of_it(shop: Shop) -> None:
    model = shop.client.get_registered_model(NAME)
    assert {alias: str(version) for alias, version in model.aliases.items()} == {"champion": "1"}
    assert model.description == "`demo`, fine-tuned with tune-whisper, for `en`."
    version = shop.client.get_model_version_by_alias(NAME, "champion")
    assert version.run_id == shop.run_id
    assert version.tags == {
        **{"language": "en", "task": "transcribe", "base_model": "demo", "experiment": "spring"},
        **{"trial": "003-r1", "validation_wer": "8.64", "validation_baseline_wer": "68.52"},
        **{"test_wer": "9.64", "test_baseline_wer": "69.52"},
    }
    assert "| test | 96 | **this model** | 9.64 | 4.20 |" in version.description
    assert f'load_model("models:/{NAME}@champion")' in version.description


def test_what_the_run_says_of_it(shop: Shop) -> None:
    run = shop.client.get_run(shop.run_id)
    (output,) = run.outputs.model_outputs
    logged = shop.client.get_logged_model(output.model_id)
    assert logged.status == "READY"
    assert logged.source_run_id == shop.run_id
    assert logged.params == run.data.params
    assert logged.params.items() >= {"learning_rate": "0.001", "seed": "1"}.items()
    assert {metric.key: metric.value for metric in logged.metrics}["test_wer"] == 9.6412
    assert run.data.metrics["test_baseline_wer"] == 69.5237
    assert run.info.status == "FINISHED"


def test_the_model_needs_nothing_of_ours(shop: Shop, tmp_path: Path) -> None:
    """It loads where tune-whisper is not installed and there is no ffmpeg, and its requirements are pinned."""
    (output,) = shop.client.get_run(shop.run_id).outputs.model_outputs
    location = shop.client.get_logged_model(output.model_id).artifact_location
    folder = shutil.copytree(location.removeprefix("file://"), tmp_path / "elsewhere")
    for number, clip in enumerate(clips(2)):
        (tmp_path / f"{number}.wav").write_bytes(as_file(clip, "WAV", 44_100))
    code = """
import importlib.abc, json, sys
from pathlib import Path
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tune", "trainer"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
import mlflow
model = mlflow.pyfunc.load_model("elsewhere")
print(json.dumps(model.predict([Path(f"{number}.wav").read_bytes() for number in range(2)])))
"""
    environment = {**os.environ, "PATH": "", "PYTHONPATH": "", "DO_NOT_TRACK": "true"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    recordings = [(tmp_path / f"{number}.wav").read_bytes() for number in range(2)]
    assert json.loads(done.stdout.splitlines()[-1]) == heard(shop.model, recordings)

    wanted = (folder / "requirements.txt").read_text().split()
    assert {line.partition("==")[0] for line in wanted} == {
        *("mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers"),
    }
    assert not any("+" in line or "==" not in line for line in wanted)
    told = "\n".join(path.read_text() for path in folder.glob("*") if path.is_file())
    assert str(shop.model) not in told  # no place of this machine
    assert not (folder / "LICENSE.txt").exists()


def test_a_second_version_takes_the_alias(own_shop: Shop) -> None:
    assert own_shop.register(alias="champion").version == "1"
    assert own_shop.register().uri == f"models:/{NAME}/2"
    third = own_shop.register(alias="champion")
    assert (third.version, third.uri) == ("3", f"models:/{NAME}@champion")
    assert str(own_shop.client.get_model_version_by_alias(NAME, "champion").version) == "3"
    assert len(own_shop.client.search_model_versions(f"name = '{NAME}'")) == 3


def test_a_store_without_the_run(own_shop: Shop, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path / 'other.db'}"
    done = own_shop.register(tracking_uri=uri, artifact_root=tmp_path / "artifacts")
    run = client_of(uri).get_run(done.run_id)
    assert done.run_id != own_shop.run_id
    assert (run.info.run_name, run.info.status, run.data.tags["role"]) == ("model", "FINISHED", "model")
    assert client_of(uri).get_experiment(run.info.experiment_id).name == "spring"
    assert load(done.uri, uri).predict(clips(1)[0]) == heard(own_shop.model, clips(1))


@pytest.mark.parametrize(
    ("name", "alias", "told"),
    [
        ("", None, "--name '': must have 1 to 256 characters"),
        ("a/b", None, "--name 'a/b': must have .* no / and no :"),
        ("a:b", None, "no / and no :"),
        ("..", None, "--name"),
        ("x" * 257, None, "1 to 256"),
        ("ok", "", "--alias '': must have letters"),
        ("ok", "two words", "--alias 'two words': must have letters, digits, _ and - only"),
        ("ok", "latest", "--alias latest: MLflow keeps"),
        ("ok", "v12", "--alias v12: MLflow keeps"),
    ],
)
def test_names_that_are_not_allowed(name: str, alias: str | None, told: str, shop: Shop) -> None:
    with pytest.raises(ConfigError, match=told):
        check_names(name, alias)
    before = inventory(shop)
    with pytest.raises(ConfigError, match=told):
        shop.register(name=name, alias=alias)
    assert inventory(shop) == before


def inventory(shop: Shop) -> tuple[Any, ...]:
    """All runs, models and versions of the store, and the files of its artifacts."""
    client = shop.client
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    models = client.search_logged_models(experiments)
    files = sorted(str(path) for path in default_artifact_root(shop.folder).rglob("*") if path.is_file())
    return (
        sorted(run.info.run_id for run in client.search_runs(experiments)),
        sorted(model.model_id for model in models),
        sorted((version.name, version.version) for version in client.search_model_versions()),
        sorted((model.name, *model.aliases) for model in client.search_registered_models()),
        files,
    )


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def test_a_folder_that_is_no_whisper(own_shop: Shop, tmp_path: Path) -> None:
    before = inventory(own_shop)
    for damage, told in (
        (lambda folder: (folder / "config.json").unlink(), "is no model folder"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "holds a bert model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot be loaded as a Whisper model"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "cannot be loaded as a Whisper"),
        (pickled, "pytorch_model.bin is a pickle"),
        (lambda folder: (folder / "generation_config.json").unlink(), "without generation_config.json"),
    ):
        folder = shutil.copytree(own_shop.model, tmp_path / "damaged")
        damage(folder)
        own_shop.model, kept = folder, own_shop.model
        with pytest.raises(ModelError, match=told) as caught:
            own_shop.register(alias="champion")
        assert len(str(caught.value).splitlines()) == 1
        own_shop.model = kept
        shutil.rmtree(folder)
    assert inventory(own_shop)[:4] == before[:4]


def test_a_store_that_refuses_keeps_nothing(own_shop: Shop) -> None:
    """The disk of the artifacts takes nothing; and a registry whose table of aliases is gone."""
    before = inventory(own_shop)
    root = default_artifact_root(own_shop.folder)
    (root / "models").write_text("a file where a folder should be")
    with pytest.raises(TrackingError, match="cannot store the model in it") as caught:
        own_shop.register(alias="champion")
    assert len(str(caught.value).splitlines()) == 1
    (root / "models").unlink()
    assert inventory(own_shop) == before
    import sqlite3

    with sqlite3.connect(own_shop.folder / "mlflow.db") as database:
        database.execute("ALTER TABLE registered_model_aliases RENAME TO gone")
    with pytest.raises(TrackingError, match=f"cannot register {NAME} in it") as caught:
        own_shop.register(alias="champion")
    assert len(str(caught.value).splitlines()) == 1
    with sqlite3.connect(own_shop.folder / "mlflow.db") as database:
        database.execute("ALTER TABLE gone RENAME TO registered_model_aliases")
    assert inventory(own_shop)[:4] == before[:4]


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("http://127.0.0.1:9", "cannot be reached: Connection refused; is the server running?"),
        ("sqlite:////no/such/folder/m.db", "unable to open database file"),
        ("mlruns", "a plain folder is no store any more"),
    ],
)
def test_a_store_that_is_not_there(uri: str, told: str, shop: Shop) -> None:
    with pytest.raises(TrackingError, match=told) as caught:
        shop.register(tracking_uri=uri)
    assert len(str(caught.value).splitlines()) == 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = Server(tmp_path_factory.mktemp("server"))
    server.start()
    yield server
    server.stop()


def test_a_tracking_server(server: Server, own_shop: Shop, tmp_path: Path) -> None:
    run_id = with_a_repeat(MadeLog(tmp_path / "served", server.url))
    done = own_shop.register(tracking_uri=server.url, run_id=run_id, alias="champion")
    assert done.run_id == run_id
    assert load(done.uri, server.url).predict(clips(1)[0]) == heard(own_shop.model, clips(1))
    other = own_shop.register(tracking_uri=server.url, run_id="0" * 32)
    assert other.run_id not in (run_id, "0" * 32)


def test_the_store_of_an_experiment_that_came_from_another_machine(own_shop: Shop, tmp_path: Path) -> None:
    done = own_shop.register(alias="champion")
    moved = tmp_path / "another machine" / "spring"
    shutil.move(own_shop.folder, moved)
    relocate_artifacts(moved / "mlflow.db", default_artifact_root(moved))
    uri = default_tracking_uri(moved)
    assert load(done.uri, uri).predict(clips(1)[0]) == heard(own_shop.model, clips(1))


def test_the_command(
    own_shop: Shop, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = ["register", str(own_shop.model), "--name", NAME, "--alias", "champion"]
    assert main([*words, "--storage", str(own_shop.storage)]) == 0
    first, load_line, serve = capfd.readouterr().out.splitlines()
    assert first == (
        f"registered {NAME} version 1 @champion in {own_shop.uri}: WER 9.64 % on test, the base model has 69.52 %"
    )
    assert load_line == f'load     mlflow.pyfunc.load_model("models:/{NAME}@champion")'
    assert serve == (
        f"serve    MLFLOW_TRACKING_URI={own_shop.uri} mlflow models serve -m 'models:/{NAME}@champion' "
        "--env-manager local"
    )
    assert own_shop.client.get_model_version_by_alias(NAME, "champion").run_id == own_shop.run_id


def test_the_command_where_the_experiment_is_not(
    own_shop: Shop, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = ["register", str(own_shop.model), "--name", NAME, "--storage", str(tmp_path / "empty")]
    assert main(words) == 2
    told = "error: --tracking-uri: is missing: the model is of experiment 'spring', which is not in"
    assert capsys.readouterr().err.startswith(told)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", own_shop.uri)
    assert main(words) == 0
    assert main([*words[:2], "--name", "a/b"]) == 2
    assert main(["register", str(tmp_path), "--name", NAME]) == 2
    assert "is no model folder; give one that tune-whisper export wrote" in capsys.readouterr().err


def test_arguments_are_frozen() -> None:
    actions = [action for action in register_parser()._actions if action.dest != "help"]
    assert {(action.option_strings or [action.dest])[0]: action.default for action in actions} == {
        **{"model": None, "--name": None, "--alias": None},
        **{"--storage": "experiments", "--tracking-uri": None},
    }
    assert EVALUATION["experiment"] == "spring"


def test_an_experiment_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered on one machine, loaded on another: the model's files go where the experiment is."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    for name, value in {**KEYS, "AWS_EC2_METADATA_DISABLED": "true"}.items():
        monkeypatch.setenv(name, value)
    with s3_server() as store:
        storage = Storage.parse(store.uri("experiments"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "first"))
        folder = storage.experiment("spring")
        shop = Shop(tmp_path, folder.path)
        folder.upload()
        shutil.rmtree(tmp_path / "first")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
        words = ["register", str(shop.model), "--name", NAME, "--alias", "champion"]
        assert main([*words, "--storage", storage.text]) == 0
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
        found = find_experiment("spring", storage)
        shutil.rmtree(tmp_path / "second")
        uri = read_tracking_uri(found)
        assert uri == f"sqlite:///{found.path}/mlflow.db"
        model = load(f"models:/{NAME}@champion", uri)
        assert model.predict(clips(1)[0]) == heard(shop.model, clips(1))
        assert model.metadata.run_id == shop.run_id

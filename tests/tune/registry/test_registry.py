"""Models in MLflow's registry: logged on the winner's run, registered, loaded by name, also where we are not."""

from __future__ import annotations

import base64
import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
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
from registered_models import DEMO, as_file, clips, export_demo, heard
from s3_server import KEYS, s3_server
from safetensors.torch import load_file

from trainer.data.audio import SAMPLE_RATE, read_audio
from tune.cli import main
from tune.experiments.events import ExportChosen, FinalRoundPlanned, ResultsWritten, TrialsOver
from tune.experiments.mlflow_store import default_artifact_root, default_tracking_uri, relocate_artifacts
from tune.experiments.results import run_ids, write_results
from tune.experiments.saved import find_experiment
from tune.experiments.settings import read_tracking_uri
from tune.experiments.storage import Storage
from tune.registry.register import check_names, register_model
from tune.util.errors import ConfigError, ModelError, TrackingError

NAME = "whisper demo"


class Shop:
    """An experiment with a winner's run, and an exported model of it."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        made = MadeLog(folder or root / "experiments" / "spring")
        self.folder, self.uri = made.folder, made.uri
        self.storage = self.folder.parent
        self.run_id = with_a_repeat(made)
        self.model = export_demo(root / "model")

    def register(self, **changes: Any) -> str:
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
    """With one version, the champion."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    assert shop.register(alias="champion") == f"models:/{NAME}@champion"
    return shop


@pytest.fixture(scope="module")
def model(shop: Shop) -> Any:
    """What `mlflow.pyfunc.load_model` makes of the champion."""
    return load(f"models:/{NAME}@champion", shop.uri)


@pytest.fixture
def own_shop(tmp_path: Path) -> Shop:
    return Shop(tmp_path)


def load(uri: str, store: str) -> Any:
    """A model by its `models:/` address."""
    import mlflow

    before = mlflow.get_tracking_uri() if mlflow.is_tracking_uri_set() else None
    mlflow.set_tracking_uri(store)
    try:
        return mlflow.pyfunc.load_model(uri)
    finally:
        mlflow.set_tracking_uri(before)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "rate", "channels"),
    [("WAV", 44_100, 2), ("WAV", 8_000, 1), ("FLAC", 48_000, 1), ("MP3", 22_050, 1), ("OGG", 16_000, 1)],
)
def test_files_of_all_kinds_and_rates(kind: str, rate: int, channels: int, shop: Shop, model: Any) -> None:
    recordings = [as_file(clip, kind, rate, channels) for clip in clips(2)]
    expected = heard(shop.model, recordings)
    assert len({*expected}) == 2
    assert model.predict(recordings) == expected
    assert model.predict(recordings[0]) == expected[:1]


def requests(first: str, second: str) -> list[dict[str, Any]]:
    """The ways in which MLflow's server takes two recordings."""
    return [
        {"inputs": [first, second]},
        {"inputs": [{"audio": first}, {"audio": second}]},
        {"instances": [first, second]},
        {"dataframe_split": {"columns": ["audio"], "data": [[first], [second]]}},
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


@pytest.mark.parametrize("content", [b"", b"no audio at all", b"aGVsbG8=", b"QUJD" * 100 + b"="])
def test_what_is_no_audio(content: bytes, model: Any) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(
        MlflowException, match="recording 2: cannot be decoded as WAV, FLAC, OGG or MP3"
    ) as caught:
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


def test_it_loads_where_nothing_of_ours_is(shop: Shop, tmp_path: Path) -> None:
    """Nor ffmpeg; its requirements are pinned, and it holds neither our paths nor what it was trained on."""
    output = shop.client.get_run(shop.run_id).outputs.model_outputs[0]
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
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not {path.name for path in files} & {"train_config.json", "splits.parquet", "model.bin"}
    assert not any(str(shop.model).encode() in path.read_bytes() for path in files)


def test_the_generation_config_is_the_models_own(shop: Shop, tmp_path: Path) -> None:
    model = export_demo(tmp_path / "ja", language="ja", task="translate")
    recordings = clips(3)
    expected = heard(model, recordings)
    assert expected != heard(shop.model, recordings)  # the setting is heeded
    address = register_model(model, tracking_uri=shop.uri, name="ja", run_id=shop.run_id)
    assert load(address, shop.uri).predict(recordings) == expected
    (version,) = shop.client.search_model_versions("name = 'ja'")
    assert (version.tags["language"], version.tags["task"]) == ("ja", "translate")


def test_what_store_and_run_say_of_it(shop: Shop) -> None:
    version = shop.client.get_model_version_by_alias(NAME, "champion")
    assert version.run_id == shop.run_id
    assert version.tags == {
        **{"language": "en", "task": "transcribe", "base_model": "demo", "experiment": "spring"},
        **{"trial": "003-r1", "validation_wer": "8.64", "validation_baseline_wer": "68.52"},
        **{"validation_cer": "4.20", "validation_baseline_cer": "53.60"},
        **{
            "test_wer": "9.64",
            "test_baseline_wer": "69.52",
            "test_cer": "4.20",
            "test_baseline_cer": "53.60",
        },
    }
    run = shop.client.get_run(shop.run_id)
    logged = shop.client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert (logged.status, logged.source_run_id) == ("READY", shop.run_id)
    assert logged.params.items() >= {"learning_rate": "0.001", "seed": "1"}.items()
    assert run.info.status == "FINISHED"
    assert run.info.end_time - run.info.start_time < 1e6, "still when the trial ended"


def test_a_second_version_takes_the_alias(shop: Shop) -> None:
    end = shop.client.get_run(shop.run_id).info.end_time
    shop.register(name="twice", alias="champion")
    assert shop.register(name="twice") == "models:/twice/2"
    assert shop.register(name="twice", alias="champion") == "models:/twice@champion"
    assert str(shop.client.get_model_version_by_alias("twice", "champion").version) == "3"
    assert shop.client.get_run(shop.run_id).info.end_time == end


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
        ("ok", "latest", "--alias 'latest': .* not be latest"),
        ("ok", "v12", "--alias 'v12'"),
    ],
)
def test_names_that_are_not_allowed(name: str, alias: str | None, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check_names(name, alias)


def pickled(folder: Path) -> None:
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (lambda folder: (folder / "config.json").unlink(), "has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "not a valid JSON file"),
        (lambda folder: (folder / "config.json").write_text('{"model_type": "bert"}'), "is a bert model"),
        (lambda folder: (folder / "model.safetensors").unlink(), "cannot load the weights"),
        (lambda folder: (folder / "model.safetensors").write_bytes(b"x"), "cannot load the weights"),
        (pickled, "pytorch_model.bin is a pickle"),
        (lambda folder: (folder / "generation_config.json").unlink(), "has no generation_config.json"),
    ],
)
def test_a_folder_that_is_no_whisper(damage: Callable[[Path], Any], told: str, tmp_path: Path) -> None:
    folder = export_demo(tmp_path / "damaged")
    damage(folder)
    with pytest.raises(ModelError, match=told) as caught:
        register_model(folder, tracking_uri=f"sqlite:///{tmp_path}/m.db", name=NAME)
    assert len(str(caught.value).splitlines()) == 1
    assert not (tmp_path / "m.db").exists()


def test_a_store_that_refuses(own_shop: Shop) -> None:
    """The disk of the artifacts takes nothing."""
    before = own_shop.client.get_run(own_shop.run_id).info
    root = default_artifact_root(own_shop.folder)
    (root / "models").write_text("a file where a folder should be")
    with pytest.raises(TrackingError, match=f"cannot register {NAME} in it") as caught:
        own_shop.register(alias="champion")
    assert len(str(caught.value).splitlines()) == 1
    assert not own_shop.client.search_registered_models()
    after = own_shop.client.get_run(own_shop.run_id).info
    assert (after.status, after.end_time) == (before.status, before.end_time)
    (root / "models").unlink()
    assert own_shop.register() == f"models:/{NAME}/1"


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


def test_a_tracking_server(shop: Shop, tmp_path: Path) -> None:
    """Onto the run there, or onto one of its own where there is none."""
    server = Server(tmp_path)
    server.start()
    try:
        run_id = with_a_repeat(MadeLog(tmp_path / "served", server.url))
        address = shop.register(tracking_uri=server.url, run_id=run_id, alias="champion")
        assert load(address, server.url).predict(clips(1)[0]) == heard(shop.model, clips(1))
        shop.register(tracking_uri=server.url, run_id="0" * 32)
        first, second = sorted(
            client_of(server.url).search_model_versions(f"name = '{NAME}'"),
            key=lambda found: int(found.version),
        )
        assert first.run_id == run_id
        run = client_of(server.url).get_run(second.run_id)
        assert (run.info.run_name, run.info.status, run.data.tags["role"]) == ("model", "FINISHED", "model")
        assert client_of(server.url).get_experiment(run.info.experiment_id).name == "spring"
    finally:
        server.stop()


def test_the_command(
    own_shop: Shop, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the experiment is on another machine later, without the first one's folder."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = ["register", str(own_shop.model), "--name", NAME, "--alias", "champion"]
    assert main([*words, "--storage", str(own_shop.storage)]) == 0
    address = f"models:/{NAME}@champion"
    printed = capfd.readouterr()
    assert printed.out.splitlines() == [
        f"registered {address} in {own_shop.uri}",
        f'load     mlflow.pyfunc.load_model("{address}")',
        f"serve    MLFLOW_TRACKING_URI={own_shop.uri} mlflow models serve -m '{address}' --env-manager local",
    ]
    assert printed.err == ""
    assert own_shop.client.get_model_version_by_alias(NAME, "champion").run_id == own_shop.run_id
    moved = tmp_path / "another machine" / "spring"
    shutil.move(own_shop.folder, moved)
    relocate_artifacts(moved / "mlflow.db", default_artifact_root(moved))
    assert load(address, default_tracking_uri(moved)).predict(clips(1)[0]) == heard(own_shop.model, clips(1))


def test_the_command_where_the_experiment_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = export_demo(tmp_path / "model")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    words = ["register", str(model), "--name", NAME, "--storage", str(tmp_path / "empty")]
    assert main(words) == 2
    told = "error: --tracking-uri: is missing: the model's experiment, 'spring', is not in"
    assert capsys.readouterr().err.startswith(told)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/m.db")
    monkeypatch.chdir(tmp_path)
    assert main(words) == 0
    assert main([*words[:2], "--name", "a/b"]) == 2


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

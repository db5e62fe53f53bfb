"""Models in MLflow's registry: on the run of the winner, loaded by name and served, also where we are not."""

import functools
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jiwer
import mlflow
import numpy as np
import pytest
import soundfile
import soxr
from made_experiments import MadeLog
from make_data import demo_copy, demo_rows
from mlflow_server import client_of, mlflow_server, wait_for
from processes import free_port
from s3_server import give_keys, s3_server

from trainer.data.audio import SAMPLE_RATE, read_audio
from tune.cli import main
from tune.experiments.events import ExportChosen, ResultsWritten
from tune.experiments.experiment import Experiment, find_experiment
from tune.experiments.mlflow_store import default_artifact_root, default_tracking_uri
from tune.experiments.results import run_ids, write_results
from tune.experiments.storage import Storage

ROOT = Path(__file__).resolve().parents[3]
CLIPS = demo_rows("test", 25)
FILES = [clip["audio"]["bytes"] for clip in CLIPS]
"""OGG files at 16 kHz."""
NAME = "whisper demo"
CHAMPION = f"models:/{NAME}@champion"
RATES = {
    "validation": {
        "before": {"wer": 68.5237, "cer": 53.6, "clips": 96},
        "after": {"wer": 8.6412345, "cer": 4.2},
    },
    "test": {"before": {"wer": 69.5237, "cer": 53.6, "clips": 96}, "after": {"wer": 9.6412345, "cer": 4.2}},
}


REFUSES_OURS = """
import importlib.abc, sys
class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in ("tune", "trainer"):
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Refuse())
"""


def export_demo(folder: Path) -> Path:
    """What an export of the trial 003-r1 of `spring` writes."""
    demo_copy(folder, "generation_config.json", num_beams=1)
    evaluation = {"experiment": "spring", "trial_id": "003-r1", "evaluations": RATES}
    (folder / "evaluation.json").write_text(json.dumps(evaluation))
    (folder / "train_config.json").write_text(json.dumps({"model": "demo"}))
    return folder


def with_a_repeat(made: MadeLog) -> str:
    """A search whose winner is the repeat 003-r1, delivered; that one's run in MLflow."""
    made.session(trials=1, finalists=1, repeats=1)
    made.trial("003", 50.0, 30.0, 12.0)
    made.trial("003-r1", 50.0, 30.0, 11.0, seed=1)
    made.append(ExportChosen(run="003-r1"))
    made.finish()
    made.deliver()
    write_results(made.saved.folder, made.log.state)
    made.append(ResultsWritten())
    made.deliver()
    made.close()
    return str(run_ids(made.folder)["003-r1"])


class Shop:
    """An experiment with a winner's run, and an exported model of it."""

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        made = MadeLog(folder or root / "experiments" / "spring")
        if folder is not None:  # of a bucket, whose store goes with it
            made.uri = default_tracking_uri(folder)
        self.folder, self.uri = made.folder, made.uri
        self.run_id = with_a_repeat(made)
        self.model = export_demo(root / "model")

    def register(self, *words: str, model: Path | None = None, name: str = NAME) -> int:
        place = ("--name", name, "--storage", str(self.folder.parent))
        return main(["register", str(model or self.model), *place, *words])

    @property
    def client(self) -> Any:
        return client_of(self.uri)


@pytest.fixture(scope="module", autouse=True)
def own_store() -> Iterator[None]:
    """What a registration sets for its process goes with this file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "15")
        yield
    mlflow.set_tracking_uri(None)


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Shop:
    """With one version, the champion."""
    shop = Shop(tmp_path_factory.mktemp("shop"))
    assert shop.register("--alias", "champion") == 0
    return shop


@pytest.fixture(scope="module")
def model(shop: Shop) -> Any:
    """What `mlflow.pyfunc.load_model` makes of the champion."""
    return load(CHAMPION, shop.uri)


def test_a_store_that_refuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shop = Shop(tmp_path)
    root = default_artifact_root(shop.folder.parent, shop.folder.name)
    (root / "models").write_text("a file where a folder should be")
    assert shop.register() == 2
    assert f"cannot register {NAME} in it" in capsys.readouterr().err
    assert not shop.client.search_registered_models()


def load(address: str, store: str) -> Any:
    mlflow.set_tracking_uri(store)
    return mlflow.pyfunc.load_model(address)


def as_file(clip: bytes, kind: str, rate: int, channels: int = 1) -> bytes:
    """The same clip in another format at another sample rate."""
    samples = soxr.resample(soundfile.read(io.BytesIO(clip), dtype="float32")[0], 16_000, rate)
    file = io.BytesIO()
    soundfile.write(file, samples[:, None].repeat(channels, axis=1), rate, format=kind)
    return file.getvalue()


def heard(folder: Path, recordings: list[bytes]) -> list[str]:
    """What transformers' pipeline makes of recordings, decoded and resampled as for training."""
    return [_pipeline(folder)(read_audio(recording))["text"].strip() for recording in recordings]


@functools.lru_cache
def _pipeline(folder: Path) -> Any:
    from transformers import pipeline

    return pipeline("automatic-speech-recognition", str(folder), device="cpu")


@pytest.mark.parametrize(
    ("kind", "rate", "channels"), [("WAV", 44_100, 2), ("FLAC", 48_000, 1), ("MP3", 22_050, 1)]
)
def test_files_of_all_kinds_and_rates(kind: str, rate: int, channels: int, shop: Shop, model: Any) -> None:
    recordings = [as_file(clip, kind, rate, channels) for clip in FILES[:2]]
    expected = heard(shop.model, recordings)
    assert len({*expected}) == 2
    assert model.predict(recordings) == expected
    assert model.predict(recordings[0]) == expected[:1]


def test_a_recording_longer_than_the_window(shop: Shop, model: Any) -> None:
    """The demo hears 4 s at once; transformers' pipeline by itself loses or refuses what comes after."""
    pause = np.zeros(SAMPLE_RATE // 2, dtype=np.float32)
    whole = np.concatenate([part for clip in FILES for part in (read_audio(clip), pause)])
    file, silence = io.BytesIO(), io.BytesIO()
    soundfile.write(file, whole, SAMPLE_RATE, format="WAV", subtype="FLOAT")
    (text,) = model.predict(file.getvalue())
    said = " ".join(clip["text"] for clip in CLIPS)
    alone = jiwer.wer(said, " ".join(heard(shop.model, FILES)))
    assert jiwer.wer(said, text) < alone + 0.1, "as good as each by itself"
    heard_at = []
    for peak in (0.1, 0.0005):
        quiet = io.BytesIO()
        samples = whole * np.float32(peak / np.abs(whole).max())
        soundfile.write(quiet, samples, SAMPLE_RATE, format="WAV", subtype="FLOAT")
        heard_at += model.predict(quiet.getvalue())
    assert jiwer.wer(*heard_at) < 0.1, "a quiet recording is lifted"
    soundfile.write(silence, np.zeros(5 * SAMPLE_RATE), SAMPLE_RATE, format="FLAC")
    assert model.predict(silence.getvalue()) == [""]


def test_what_store_and_run_say_of_it(shop: Shop) -> None:
    version = shop.client.get_model_version_by_alias(NAME, "champion")
    assert version.run_id == shop.run_id
    assert version.tags == {
        **{"language": "en", "task": "transcribe", "base_model": "demo", "experiment": "spring"},
        **{"trial": "003-r1", "validation_wer": "8.64", "validation_baseline_wer": "68.52"},
        **{"validation_cer": "4.20", "validation_baseline_cer": "53.60", "test_wer": "9.64"},
        **{"test_baseline_wer": "69.52", "test_cer": "4.20", "test_baseline_cer": "53.60"},
    }
    run = shop.client.get_run(shop.run_id)
    logged = shop.client.get_logged_model(run.outputs.model_outputs[0].model_id)
    assert (logged.status, logged.source_run_id) == ("READY", shop.run_id)
    assert logged.params.items() >= {"learning_rate": "0.0001", "seed": "1"}.items()
    assert run.info.end_time - run.info.start_time < 1e6, "still when the trial ended"
    folder = Path(logged.artifact_location.removeprefix("file://"))
    wanted = (folder / "requirements.txt").read_text().split()
    names = {"mlflow", "numpy", "silero-vad", "soundfile", "soxr", "torch", "transformers"}
    assert {line.partition("==")[0] for line in wanted} == names
    assert not any("+" in line or "==" not in line for line in wanted)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not {path.name for path in files} & {"train_config.json", "splits.parquet", "model.bin"}
    assert not any(str(shop.model).encode() in path.read_bytes() for path in files)


def test_a_second_version_takes_the_alias(shop: Shop, capfd: pytest.CaptureFixture[str]) -> None:
    capfd.readouterr()
    assert shop.register("--alias", "champion") == 0
    assert capfd.readouterr() == (
        f"registering {NAME} ...\n"
        f"registered {CHAMPION} in {shop.uri}\n"
        f'load     mlflow.pyfunc.load_model("{CHAMPION}")\n'
        f"serve    MLFLOW_TRACKING_URI={shop.uri} mlflow models serve -m '{CHAMPION}' --env-manager local\n",
        "",
    )
    assert str(shop.client.get_model_version_by_alias(NAME, "champion").version) == "2"


def test_a_store_that_has_nothing_of_the_trial(shop: Shop, tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/other.db"
    assert shop.register("--tracking-uri", uri) == 0
    client = client_of(uri)
    [version] = client.search_model_versions(f"name = '{NAME}'")
    assert not version.run_id
    assert client.get_experiment_by_name("spring") is not None


@pytest.mark.parametrize(
    ("name", "alias", "told"),
    [
        ("a/b", "ok", "--name 'a/b': must have 1 to 256 characters, no / and no :"),
        ("ok", "v12", "not be latest"),
    ],
)
def test_names_that_are_not_allowed(name: str, alias: str, told: str, refused: Callable[..., str]) -> None:
    assert told in refused("register", "nothing", "--name", name, "--alias", alias)


def test_a_folder_that_is_no_whisper(tmp_path: Path, refused: Callable[..., str]) -> None:
    folder = export_demo(tmp_path / "damaged")
    words = ["register", "damaged", "--name", NAME, "--tracking-uri", "sqlite:///m.db"]
    (folder / "config.json").write_text('{"model_type": "bert"}')
    assert "is a bert model" in refused(*words)
    (folder / "generation_config.json").unlink()
    assert "has no generation_config.json" in refused(*words)


def test_no_store_is_known(
    tmp_path: Path, refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    export_demo(tmp_path / "model")
    line = refused("register", "model", "--name", NAME, "--storage", "empty")
    assert "--tracking-uri: is missing: the model's experiment, 'spring', is not in" in line


def test_an_experiment_in_an_object_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Registered on one machine, loaded on another: the model's files go where the experiment is."""
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    give_keys(monkeypatch, tmp_path / "first")
    with s3_server() as store:
        storage = Storage.parse(store.uri("experiments"))
        folder = storage.experiment("spring")
        shop = Shop(tmp_path, folder.path)
        folder.upload_log(lambda: None)
        folder.upload()
        shutil.rmtree(tmp_path / "first")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "second"))
        words = ["--name", NAME, "--alias", "champion", "--storage", storage.text]
        assert main(["register", str(shop.model), *words]) == 0
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "third"))
        found = find_experiment("spring", storage)
        shutil.rmtree(tmp_path / "second")
        uri = Experiment.read(found).tracking_uri
        assert uri == f"sqlite:///{found.path}/mlflow.db"
        model = load(CHAMPION, uri)
        assert model.predict(FILES[0]) == heard(shop.model, FILES[:1])
        assert client_of(uri).get_model_version_by_alias(NAME, "champion").run_id == shop.run_id


@pytest.mark.slow
def test_a_tracking_server_and_one_that_answers_requests(
    shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Served where neither our packages nor ffmpeg are, asked by the Python lines of docs/mlflow.md."""
    port, log = free_port(), tmp_path / "serve.log"
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NO_PROXY", "*")
    (tmp_path / "sitecustomize.py").write_text(REFUSES_OURS)
    words = ["--name", NAME, "--alias", "champion", "--storage", str(tmp_path / "served")]
    serve = [sys.executable, "-m", "mlflow", "models", "serve", "--model-uri", CHAMPION]
    serve += ["--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)]
    with mlflow_server(tmp_path) as address, log.open("wb") as output:
        run_id = with_a_repeat(MadeLog(tmp_path / "served" / "spring", address))
        assert main(["register", str(shop.model), *words]) == 0
        assert client_of(address).get_model_version_by_alias(NAME, "champion").run_id == run_id
        capsys.readouterr()
        environment = {**os.environ, "MLFLOW_TRACKING_URI": address, "DO_NOT_TRACK": "true"}
        # The server's own programs are found beside Python's.
        environment |= {"PATH": f"{Path(sys.executable).parent}:/bin", "OMP_NUM_THREADS": "1"}
        environment |= {"PYTHONPATH": str(tmp_path)}
        server = subprocess.Popen(
            serve, stdout=output, stderr=output, env=environment, cwd=tmp_path, start_new_session=True
        )

        def is_up() -> bool:
            assert server.poll() is None, log.read_text()
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/ping", timeout=2):
                    return True
            except OSError:
                return False

        try:
            wait_for(is_up, 180)
            blocks = (ROOT / "docs" / "mlflow.md").read_text().split("```python\n")[1:]
            (code,) = [block for part in blocks if "/invocations" in (block := part.split("```")[0])]
            code = code.replace("127.0.0.1:5001", f"127.0.0.1:{port}")
            recording = Path("recording.wav")
            recording.write_bytes(as_file(FILES[0], "WAV", 22_050, 2))
            exec(code, {})
            assert capsys.readouterr().out.splitlines() == heard(shop.model, [recording.read_bytes()])
            recording.write_bytes(b"these are not the words")
            with pytest.raises(urllib.error.HTTPError) as caught:
                exec(code, {})
            answer = json.load(caught.value)
            assert caught.value.code == 400 and "stack_trace" not in answer
            assert "recording 1: cannot be decoded as WAV, FLAC, OGG or MP3" in answer["message"]
        finally:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait(30)

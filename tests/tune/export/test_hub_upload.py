"""Exported models to the hub: the real client library against a local server of the hub's shape."""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hub_server import READ, WRITE, DroppedError, Hub, RefusedError, serve
from huggingface_hub import close_session, constants
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from trainer.model.pretrained import DEMO_MODEL, fetch_model
from tune.cli import main
from tune.export.model_card import PLACE

Push = Callable[..., tuple[int, str]]
CARD = f"---\nlicense: cc0-1.0\n---\n\nload {PLACE}\n"
HUB_CARD = "---\nlicense: cc0-1.0\n---\n\nload me/whisper-be\n"
NAMES = {path.name for path in DEMO_MODEL.iterdir()}
TEXTS = {"README.md", "train_config.json"}
"""What is written anew for the hub."""


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """An empty hub, which the client of this process knows as its own."""
    (tmp_path / "hub").mkdir()
    with serve(tmp_path / "hub") as server:
        for name in [*os.environ]:
            if name.lower().startswith(("hf_", "hugging")) or name.lower().endswith("_proxy"):
                monkeypatch.delenv(name)
        # They are read from the environment when the client is imported.
        known = {"ENDPOINT": server.url, "HF_HUB_OFFLINE": False, "HF_HUB_DISABLE_XET": True}
        known["HUGGINGFACE_CO_URL_TEMPLATE"] = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        known |= {"HF_TOKEN_PATH": str(tmp_path / "no token"), "HF_HUB_CACHE": str(tmp_path / "cache")}
        for name, value in known.items():
            monkeypatch.setattr(constants, name, value)
        close_session()
        yield server
    close_session()


@pytest.fixture
def push(
    monkeypatch: pytest.MonkeyPatch, model: Path, capfd: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    """`tune-whisper push` beside the model: its exit code and what it writes to stderr, where no token ever is."""
    monkeypatch.chdir(model.parent)
    # Up to eight seconds before each of the client's five tries.
    monkeypatch.setattr("time.sleep", lambda _: None)

    def push(*words: str, token: str | None = WRITE) -> tuple[int, str]:
        monkeypatch.setenv("HF_TOKEN", token or "")
        code = main(["push", *words])
        output, errors = capfd.readouterr()
        assert not token or token not in output + errors
        return code, errors

    return push


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An exported model, with something that is nobody else's business."""
    folder = tmp_path / "my-model"
    shutil.copytree(DEMO_MODEL, folder)
    (folder / "README.md").write_text(CARD)
    (folder / "train_config.json").write_text(json.dumps({"data": "/home/me/clips.csv", "epochs": 3.0}))
    (folder / ".cache").mkdir()
    (folder / ".cache" / "private.txt").write_text("mine")
    return folder


def refusal(found: tuple[int, str]) -> str:
    """The one line of a mistake that was told as one."""
    code, errors = found
    [line] = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code == 2
    assert "Traceback" not in errors
    return line


def test_adapters_name_their_base_model_without_its_path(hub: Hub, push: Push, model: Path) -> None:
    (model / "adapter").mkdir()
    (model / "adapter" / "adapter_config.json").write_text(
        '{"base_model_name_or_path": "/home/me/base", "r": 8}'
    )
    assert push("my-model", "whisper-be") == (0, "")
    there = hub.root / "models" / "me" / "whisper-be" / "main" / "adapter" / "adapter_config.json"
    assert json.loads(there.read_text()) == {"base_model_name_or_path": "base", "r": 8}


def test_pushed_and_loaded_again(hub: Hub, push: Push, model: Path) -> None:
    """Byte for byte, by transformers itself and by what fetches models for a training."""
    assert push("my-model", "whisper-be") == (0, "")
    there = hub.root / "models" / "me" / "whisper-be" / "main"
    assert {path.name for path in there.iterdir()} == NAMES | TEXTS | {".gitattributes"}
    for name in NAMES:
        assert (there / name).read_bytes() == (DEMO_MODEL / name).read_bytes()
    assert (there / "README.md").read_text() == HUB_CARD
    assert (model / "README.md").read_text() == CARD  # it is right where the model lies
    settings = json.loads((there / "train_config.json").read_text())
    assert settings == {"data": "clips.csv", "epochs": 3.0}, "no paths of this machine"
    assert [(commit["summary"], set(commit["added"])) for commit in hub.commits] == [
        ("Upload from tune-whisper", NAMES),
        ("Upload from tune-whisper", TEXTS),
    ]
    loaded = WhisperForConditionalGeneration.from_pretrained("me/whisper-be")
    assert sum(parameter.numel() for parameter in loaded.parameters()) == 811_520
    assert len(WhisperProcessor.from_pretrained("me/whisper-be").tokenizer) > 100
    fetched = Path(fetch_model("me/whisper-be", weights=True))
    assert (fetched / "model.safetensors").read_bytes() == (DEMO_MODEL / "model.safetensors").read_bytes()
    assert main(["export", "--from-model", "me/whisper-be", "--output", "again"]) == 0
    assert (model.parent / "again" / "model.safetensors").is_file()


def test_again_updates_what_changed(hub: Hub, model: Path, push: Push) -> None:
    """Old weights under another name would be loaded in place of the new ones."""
    assert push("my-model", "team/speech") == (0, "")
    there = hub.root / "models" / "team" / "speech" / "main"
    (there / "notes.txt").write_text("written on the hub")
    (there / "pytorch_model.bin").write_bytes(b"of an older version")
    sent = len([line for line in hub.requests if line.startswith("PUT")])
    assert push("my-model", "team/speech", "--message", "nothing new") == (0, "")
    assert len([line for line in hub.requests if line.startswith("PUT")]) == sent == 1
    (model / "generation_config.json").write_text("{}")
    assert push("my-model", "team/speech", "--message", "greedy") == (0, "")
    assert hub.commits[-1] == {
        "repo": "models/team/speech",
        "summary": "greedy",
        "added": ["generation_config.json"],
        "deleted": [],
    }
    assert [commit["deleted"] for commit in hub.commits] == [[], [], ["pytorch_model.bin"], []]
    assert (there / "notes.txt").exists()


def test_private_stays_private(hub: Hub, push: Push) -> None:
    assert push("my-model", "team/secret", "--private") == (0, "")
    assert hub.private == {"models/team/secret"}
    hub.create("models/team/open", private=False)
    line = refusal(push("my-model", "team/open", "--private"))
    assert line.startswith("error: hub model team/open: exists already and is public; make it private")
    assert len(hub.commits) == 2


@pytest.mark.parametrize(
    ("words", "token", "told"),
    [
        (
            ["nowhere", "me/x"],
            WRITE,
            "nowhere: no such folder; give a folder that `tune-whisper export` wrote",
        ),
        (["my-model", "me/../x"], WRITE, "hub model me/../x: was not pushed: Repo id must"),
        (["my-model", "me/x"], None, "no token for http://127.0.0.1:"),
        (["my-model", "me/x"], "hf_unknown", "was not pushed: the hub answers 401"),
        (
            ["my-model", "me/x"],
            READ,
            "the hub answers 403: You don't have the rights to do that here; log in",
        ),
    ],
)
def test_refused_before_anything_is_sent(
    hub: Hub, push: Push, words: list[str], token: str | None, told: str
) -> None:
    assert told in refusal(push(*words, token=token))
    assert not any(line.startswith("PUT") or "/commit/" in line for line in hub.requests)


@pytest.mark.parametrize(
    ("where", "error", "told"),
    [
        ("PUT /lfs/", RefusedError(403, "expired"), "was not pushed: the hub answers 403"),
        ("/preupload/", DroppedError(), "was not pushed: the hub cannot be reached ("),
    ],
    ids=["upload refused", "gone before"],
)
def test_the_hub_fails_in_the_middle(hub: Hub, push: Push, where: str, error: Exception, told: str) -> None:
    """One line, and the same command brings it to an end once the hub is back."""
    hub.create("models/me/x", private=True)

    def fault(request: str) -> None:
        if where in request:
            raise error

    hub.fault = fault
    line = refusal(push("my-model", "me/x", "--private"))
    assert told in line
    assert line.endswith("continue with: tune-whisper push my-model me/x --private")
    assert not hub.commits
    hub.fault = lambda request: None
    assert push("my-model", "me/x", "--private") == (0, "")
    assert len(hub.commits) == 2

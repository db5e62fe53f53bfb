"""Exported models to the hub: the real client library against a local server of the hub's shape."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hub_server import READ, WRITE, DroppedError, Hub, RefusedError, serve

from trainer.model.pretrained import DEMO_MODEL
from tune.export.model_card import PLACE

ROOT = Path(__file__).resolve().parents[3]
CARD = f"---\nlicense: cc0-1.0\n---\n\nload {PLACE}\n"
HUB_CARD = "---\nlicense: cc0-1.0\n---\n\nload me/whisper-be\n"
NAMES = {path.name for path in DEMO_MODEL.iterdir()} | {"README.md"}
IMPATIENT = "import time; time.sleep = lambda seconds: None\n"
"""The client waits up to eight seconds before each of its five tries."""


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    """An empty hub."""
    (tmp_path / "hub").mkdir()
    with serve(tmp_path / "hub") as server:
        yield server


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """An exported model, with something that is nobody else's business."""
    folder = tmp_path / "my-model"
    shutil.copytree(DEMO_MODEL, folder)
    (folder / "README.md").write_text(CARD)
    (folder / ".cache").mkdir()
    (folder / ".cache" / "private.txt").write_text("mine")
    return folder


def python(
    hub: Hub, folder: Path, code: str, *, token: str | None, **more: str
) -> subprocess.CompletedProcess[str]:
    """Run code in a new process: the client reads the hub's address when it is imported."""
    hidden = ("proxy", "hf_", "hugging", "transformers_offline")
    environment = {name: value for name, value in os.environ.items() if not name.lower().startswith(hidden)}
    environment = {name: value for name, value in environment.items() if not name.lower().endswith("_proxy")}
    environment |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "NO_PROXY": "*"}
    environment |= {"HF_HUB_DISABLE_XET": "1", "PYTHONPATH": str(ROOT)} | more
    if token:
        environment["HF_TOKEN"] = token
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=560,
        check=False,
    )


def push(
    hub: Hub, folder: Path, *words: str, token: str | None = WRITE, before: str = "", **more: str
) -> subprocess.CompletedProcess[str]:
    """`tune-whisper push` in `folder`; no output ever shows a token."""
    code = f"{before}import sys\nfrom tune.cli import main\nsys.exit(main({['push', *words]!r}))"
    done = python(hub, folder, code, token=token, **more)
    assert token is None or token not in done.stdout + done.stderr
    return done


def refusal(done: subprocess.CompletedProcess[str]) -> str:
    """The one line of a mistake that was told as one."""
    assert done.returncode == 2, done.stdout + done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert len(lines) == 1, done.stderr
    assert "Traceback" not in done.stderr
    return lines[0]


def test_pushed_and_loaded_again(hub: Hub, model: Path, tmp_path: Path) -> None:
    """Byte for byte, by transformers itself and by what fetches models for a training."""
    done = push(hub, tmp_path, "my-model", "whisper-be", HF_DEBUG="1", HF_HUB_VERBOSITY="debug")
    assert done.returncode == 0, done.stderr
    assert f"pushed my-model to {hub.url}/me/whisper-be" in done.stdout
    there = hub.root / "models" / "me" / "whisper-be" / "main"
    assert {path.name for path in there.iterdir()} == NAMES | {".gitattributes"}
    for name in NAMES - {"README.md"}:
        assert (there / name).read_bytes() == (DEMO_MODEL / name).read_bytes()
    assert (there / "README.md").read_text() == HUB_CARD
    assert (model / "README.md").read_text() == CARD  # it is right where the model lies
    assert [(commit["summary"], set(commit["added"])) for commit in hub.commits] == [
        ("Upload from tune-whisper", NAMES - {"README.md"}),
        ("Upload from tune-whisper", {"README.md"}),
    ]
    code = """
from transformers import WhisperForConditionalGeneration, WhisperProcessor
from trainer.model.pretrained import fetch_model
model = WhisperForConditionalGeneration.from_pretrained("me/whisper-be")
processor = WhisperProcessor.from_pretrained("me/whisper-be")
print(sum(parameter.numel() for parameter in model.parameters()), processor.tokenizer.vocab_size)
print(fetch_model("me/whisper-be", weights=True))
"""
    loaded = python(hub, tmp_path, code, token=None)
    assert loaded.returncode == 0, loaded.stderr
    numbers, fetched = loaded.stdout.splitlines()[-2:]
    assert numbers.split()[0] == "811520"
    assert (Path(fetched) / "model.safetensors").read_bytes() == (
        DEMO_MODEL / "model.safetensors"
    ).read_bytes()


def test_again_updates_what_changed(hub: Hub, model: Path, tmp_path: Path) -> None:
    """Old weights under another name would be loaded in place of the new ones."""
    assert push(hub, tmp_path, "my-model", "team/speech").returncode == 0
    there = hub.root / "models" / "team" / "speech" / "main"
    (there / "notes.txt").write_text("written on the hub")
    (there / "pytorch_model.bin").write_bytes(b"of an older version")
    sent = len([line for line in hub.requests if line.startswith("PUT")])
    assert push(hub, tmp_path, "my-model", "team/speech", "--message", "nothing new").returncode == 0
    assert len([line for line in hub.requests if line.startswith("PUT")]) == sent == 1
    (model / "generation_config.json").write_text("{}")
    assert push(hub, tmp_path, "my-model", "team/speech", "--message", "greedy").returncode == 0
    assert hub.commits[-1] == {
        "repo": "models/team/speech",
        "summary": "greedy",
        "added": ["generation_config.json"],
        "deleted": [],
    }
    assert [commit["deleted"] for commit in hub.commits] == [[], [], ["pytorch_model.bin"], []]
    assert (there / "notes.txt").exists()


def test_private_stays_private(hub: Hub, model: Path, tmp_path: Path) -> None:
    assert push(hub, tmp_path, "my-model", "team/secret", "--private").returncode == 0
    assert hub.private == {"models/team/secret"}
    hub.create("models/team/open", private=False)
    line = refusal(push(hub, tmp_path, "my-model", "team/open", "--private"))
    assert line.startswith("error: hub model team/open: is there already and public; make it private")
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
    hub: Hub, model: Path, tmp_path: Path, words: list[str], token: str | None, told: str
) -> None:
    assert told in refusal(push(hub, tmp_path, *words, token=token))
    assert not any(line.startswith("PUT") or "/commit/" in line for line in hub.requests)


@pytest.mark.parametrize(
    ("where", "error", "told"),
    [
        ("PUT /lfs/", RefusedError(403, "expired"), "was not pushed: the hub answers 403"),
        ("/preupload/", DroppedError(), "was not pushed: the hub cannot be reached ("),
    ],
    ids=["upload refused", "gone before"],
)
def test_the_hub_fails_in_the_middle(
    hub: Hub, model: Path, tmp_path: Path, where: str, error: Exception, told: str
) -> None:
    """One line, and the same command brings it to an end once the hub is back."""
    hub.create("models/me/x", private=True)

    def fault(request: str) -> None:
        if where in request:
            raise error

    hub.fault = fault
    line = refusal(push(hub, tmp_path, "my-model", "me/x", "--private", before=IMPATIENT))
    assert told in line
    assert line.endswith("push again with: tune-whisper push my-model me/x --private")
    assert not hub.commits
    hub.fault = lambda request: None
    assert push(hub, tmp_path, "my-model", "me/x", "--private").returncode == 0
    assert len(hub.commits) == 2


def test_where_large_files_cannot_be_sent(hub: Hub, model: Path, tmp_path: Path) -> None:
    """The hub's newer protocol is compiled code with errors of its own."""
    done = push(hub, tmp_path, "my-model", "me/x", before=IMPATIENT, HF_HUB_DISABLE_XET="0")
    assert "hub model me/x: was not pushed: " in refusal(done)
    assert not hub.commits

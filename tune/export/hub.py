"""An exported model on the Hugging Face hub; what went wrong is one line."""

from __future__ import annotations

import contextlib
import json
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

from trainer.errors import UserError
from trainer.model.pretrained import no_answer
from tune.experiments.models import SETTINGS_FILE
from tune.experiments.paths import without_paths
from tune.export.export import ADAPTER_FOLDER
from tune.export.model_card import PLACE
from tune.util.errors import first_line
from tune.util.files import read_object

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
"""What an earlier push may have left and this one has not: `from_pretrained` could load it in place of the new."""
_NEVER = (".*", "*/.*")
_WITH_PATHS = (SETTINGS_FILE, f"{ADAPTER_FOLDER}/adapter_config.json")
"""Files with settings that may be paths of this machine."""
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


class HubError(UserError):
    """The hub cannot be reached, refuses, or asks for another name; tokens are never shown."""


def push_to_hub(folder: Path, repo: str, *, private: bool = False, message: str) -> str:
    """Upload an exported model to `NAME` or `NAMESPACE/NAME`, made where it is not there; the address of its page.

    What is there already and unchanged is not sent again. Card and settings are a commit of their own: on the hub the
    card's examples name the model there, and the settings have the names of local files, not their paths. In the folder
    both stay as they are, right as long as the model is used from there.

    Raises:
        HubError: it could not be done, with the command that tries again.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, constants, get_token
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if get_token() is None:
        raise HubError(f"hub model {repo}: no token for {constants.ENDPOINT}; {_LOG_IN}")
    if not sys.stderr.isatty():
        disable_progress_bars()
    api, card = HfApi(), folder / "README.md"
    command = ["tune-whisper", "push", str(folder), repo, *(["--private"] if private else [])]
    with _hub_errors(repo, f"; what was uploaded stays there; continue with: {shlex.join(command)}"):
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        whole = url.repo_id
        if private and not api.model_info(whole).private:
            raise HubError(
                f"hub model {whole}: exists already and is public; make it private in its settings on the hub, or drop "
                "--private"
            )
        api.upload_folder(
            repo_id=whole,
            folder_path=folder,
            commit_message=message,
            ignore_patterns=[*_NEVER, card.name, *_WITH_PATHS],
            delete_patterns=list(_WEIGHTS),
        )
        texts = {}
        if card.is_file():
            texts[card.name] = card.read_text(encoding="utf-8").replace(PLACE, whole)
        for name in _WITH_PATHS:
            if settings := read_object(folder / name):
                texts[name] = json.dumps(without_paths(settings), indent=2) + "\n"
        changed = [CommitOperationAdd(name, text.encode()) for name, text in texts.items()]
        if changed:
            api.create_commit(repo_id=whole, operations=changed, commit_message=message)
    return str(url)


@contextlib.contextmanager
def _hub_errors(repo: str, again: str) -> Iterator[None]:
    """Whatever the hub's client raises, as one line."""
    from huggingface_hub.errors import HfHubHTTPError

    try:
        yield
    except (no_answer(), OSError, RuntimeError, ValueError) as error:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # a bar that broke off ends without a line feed
        # A file's error comes inside a RuntimeError; a ValueError is of the name or of the card's metadata.
        inner = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        reason = first_line(inner)
        if isinstance(inner, HfHubHTTPError):
            status = inner.response.status_code
            reason = f"the hub answers {status}: {inner.server_message or reason}"
            reason += f"; {_LOG_IN}" if status in (401, 403) else ""
        elif isinstance(inner, (no_answer(), OSError)):
            reason = f"the hub cannot be reached ({reason})"
        raise HubError(f"hub model {repo}: was not pushed: {reason}{again}") from error

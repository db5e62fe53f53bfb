"""An exported model on the Hugging Face hub: what could go wrong is found out before, what went wrong is one line."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tune.export.model_card import PLACE
from tune.util.errors import UserError, first_line

_WEIGHTS = ("*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json")
"""What an earlier push may have left and this one has not: `from_pretrained` could load it in place of the new."""
_NEVER = (".*", "*.partial", "__pycache__")
_LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may write"


class HubError(UserError):
    """The hub cannot be reached, refuses, or asks for another name; tokens are never shown."""


def check_hub(repo: str, *, private: bool = False) -> str:
    """Find out whether a model can be pushed, before it is made: name, token, connection, permission.

    Args:
        repo: `NAME` or `NAMESPACE/NAME`; without a namespace it is the user's own.
        private: whether only members shall see it.

    Returns:
        The whole `NAMESPACE/NAME`.

    Raises:
        HubError: it cannot.
    """
    from huggingface_hub import HfApi, constants, get_token
    from huggingface_hub.errors import RepositoryNotFoundError

    _check_repo_name(repo)
    if constants.HF_HUB_OFFLINE:
        raise HubError(
            f"hub model {repo}: HF_HUB_OFFLINE is set, which forbids all requests to the hub; unset it"
        )
    if get_token() is None:
        raise HubError(f"hub model {repo}: no token for {constants.ENDPOINT}; {_LOG_IN}")
    api = HfApi()
    with _told(repo, "cannot be checked"):
        me = api.whoami()
        whole = repo if "/" in repo else f"{me['name']}/{repo}"
        _check_rights(whole, me)
        with contextlib.suppress(RepositoryNotFoundError):  # it will be made
            api.auth_check(whole, write=True)
            if private and not api.model_info(whole).private:
                raise HubError(
                    f"hub model {whole}: is there already and public; make it private in its settings on the hub, "
                    "or drop --private"
                )
    return whole


def push_to_hub(folder: Path, repo: str, *, private: bool = False, message: str) -> str:
    """Upload a folder as one commit; what is there already and unchanged is not sent again.

    Args:
        folder: an exported model.
        repo: as `check_hub` returns it; made where it is not there.
        private: only for a repository that is made.
        message: the commit's.

    Returns:
        The address of the model's page.

    Raises:
        HubError: it could not be done, with the command that tries again.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.utils.tqdm import disable_progress_bars

    if not sys.stderr.isatty():
        disable_progress_bars()
    api = HfApi()
    again = f"; what was sent stays there, push again with: tune-whisper push {folder} {repo}"
    with _told(repo, "was not pushed", again + (" --private" if private else "")):
        url = api.create_repo(repo, private=private or None, exist_ok=True)
        with _with_hub_card(folder, repo) as staged:
            api.upload_folder(
                repo_id=repo,
                folder_path=staged,
                commit_message=message,
                ignore_patterns=list(_NEVER),
                delete_patterns=list(_WEIGHTS),
            )
    return str(url)


@contextlib.contextmanager
def _with_hub_card(folder: Path, repo: str) -> Iterator[Path]:
    """The folder as the hub shall have it: links to its files, with a card of its own.

    The folder keeps its card, which is right as long as the model is used from there.
    """
    with tempfile.TemporaryDirectory(prefix="tune-whisper-push-") as temporary:
        staged = Path(temporary) / "model"
        shutil.copytree(
            folder.absolute(), staged, copy_function=os.symlink, ignore=shutil.ignore_patterns(*_NEVER)
        )
        card = staged / "README.md"
        if card.is_file():
            text = card.read_text(encoding="utf-8")
            card.unlink()  # the link; writing through it would change the folder's own
            card.write_text(text.replace(PLACE, repo), encoding="utf-8")
        yield staged


def _check_repo_name(repo: str) -> None:
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id  # type: ignore[attr-defined]

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise HubError(
            f"hub model {repo}: no name for the hub; give NAME or NAMESPACE/NAME of at most 96 letters, digits, "
            "-, _ and ., none of - and . first or last or doubled"
        ) from error


def _check_rights(repo: str, me: dict[str, Any]) -> None:
    """What `whoami` says of the token and the namespace; the repository's own rules are the hub's to check."""
    token = me.get("auth", {}).get("accessToken", {})
    if token.get("role") == "read":
        raise HubError(f"hub model {repo}: the token {token.get('displayName')!r} may only read; {_LOG_IN}")
    namespace = repo.split("/", 1)[0]
    roles = {each["name"]: each.get("roleInOrg") for each in me.get("orgs", [])}
    if namespace != me["name"] and namespace not in roles:
        known = ", ".join([me["name"], *roles])
        raise HubError(f"hub model {repo}: {me['name']} is no member of {namespace}; there is {known}")
    if roles.get(namespace) == "read":
        raise HubError(f"hub model {repo}: {me['name']} may only read in {namespace}")


@contextlib.contextmanager
def _told(repo: str, what: str, again: str = "") -> Iterator[None]:
    """Whatever the hub's client raises, as one line."""
    from huggingface_hub.errors import HfHubHTTPError

    no_answer: type[Exception] = HfHubHTTPError.__bases__[0]  # the client's own: httpx or httpx2, by version
    try:
        yield
    except HubError:
        raise
    except (no_answer, OSError, RuntimeError, ValueError) as error:
        if sys.stderr.isatty():
            print(file=sys.stderr)  # a bar that broke off ends without a line feed
        # A file's error comes inside a RuntimeError; a ValueError is of the card's metadata.
        inner = error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error
        if isinstance(inner, HfHubHTTPError):
            reason = _refusal(inner)
        elif isinstance(inner, (no_answer, OSError)):
            reason = f"the hub cannot be reached ({first_line(inner)})"
        else:
            reason = first_line(inner)
        raise HubError(f"hub model {repo}: {what}: {reason}{again}") from error


def _refusal(error: Any) -> str:
    status = error.response.status_code
    if status == 401:
        return f"the hub does not know the token (401); {_LOG_IN}"
    if status == 403:
        return f"the token has no right to write there (403); {_LOG_IN}"
    return f"the hub answers {status}: {error.server_message or first_line(error)}"

"""Ray's token authentication (Ray 2.52 and newer), where it is on."""

from __future__ import annotations

import os
from pathlib import Path

_MODE = "RAY_AUTH_MODE"


def use_token_if_there() -> None:
    """Send Ray's token with everything, where there is one and nobody decided otherwise.

    Ray itself does so only for a cluster that it finds or starts on this machine, not for an address that it is
    given; a cluster that wants no token ignores it. Must come before Ray is imported.
    """
    if _MODE in os.environ:
        return
    named = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if named or (Path.home() / ".ray" / "auth_token").is_file():
        os.environ[_MODE] = "token"

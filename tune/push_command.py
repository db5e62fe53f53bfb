"""`tune-whisper push`: an exported model to the Hugging Face hub, also after a push that broke off."""

from __future__ import annotations

import argparse
from pathlib import Path

from tune.arguments import Parser
from tune.display import make_console, say
from tune.errors import ModelError


def push_parser() -> argparse.ArgumentParser:
    """Arguments of `tune-whisper push`."""
    parser = Parser(
        prog="tune-whisper push",
        description="Upload an exported model to the Hugging Face hub; again to update it.",
        epilog="The token is taken from HF_TOKEN or from `hf auth login`.",
    )
    parser.add_argument("folder", type=Path, metavar="DIR", help="folder that `tune-whisper export` wrote")
    parser.add_argument("repo", metavar="REPO", help="NAME or NAMESPACE/NAME of the model on the hub")
    parser.add_argument(
        "--private", action="store_true", help="only members of the namespace see a new model"
    )
    parser.add_argument("--message", default="Upload from tune-whisper", metavar="TEXT", help="of the commit")
    return parser


def push(words: list[str]) -> int:
    """Run `tune-whisper push`."""
    arguments = push_parser().parse_args(words)
    folder: Path = arguments.folder.expanduser()
    if not (folder / "config.json").is_file():
        what = "has no config.json" if folder.is_dir() else "no such folder"
        raise ModelError(f"{arguments.folder}: {what}; give a folder that `tune-whisper export` wrote")
    from tune.hub_upload import check_hub, push_to_hub

    console = make_console()
    repo = check_hub(arguments.repo, private=arguments.private)
    url = push_to_hub(folder, repo, private=arguments.private, message=arguments.message)
    say(console, f"pushed {arguments.folder} to {url}")
    return 0

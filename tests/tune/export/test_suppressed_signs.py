"""Runtimes with a list of signs of their own are told to leave it out where the model may write some of them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from trainer.conversion.decoding import read_decoding
from trainer.conversion.formats import Target
from tune.export.formats import format_readme

OPENAI = """
1 2 7 8 9 10 14 25 26 27 28 29 31 58 59 60 61 62 63 90 91 92 93 359 503 522 542 873 893 902 918 922 931 1350
1853 1982 2460 2627 3246 3253 3268 3536 3846 3961 4183 4667 6585 6647 7273 9061 9383 10428 10929 11938 12033
12331 12562 13793 14157 14635 15265 15618 16553 16604 18362 18956 20075 21675 22520 26130 26161 26435 28279
29464 31650 32302 32470 36865 42863 47425 49870 50254 50258 50358 50359 50360 50361 50362
"""
"""`suppress_tokens` of openai/whisper-base."""


@pytest.mark.parametrize("taken", [[], [7, 8]])
def test_the_whole_list_or_none(taken: list[int], shared_data: Path, tmp_path: Path) -> None:
    folder = tmp_path / "model"
    shutil.copytree(shared_data / "whisper_tiny_processor", folder, copy_function=shutil.copyfile)
    folder.chmod(0o755)
    settings = json.loads((folder / "generation_config.json").read_text())
    settings["suppress_tokens"] = [token for token in map(int, OPENAI.split()) if token not in taken]
    (folder / "generation_config.json").write_text(json.dumps(settings))
    decoding = read_decoding(folder)
    assert decoding.suppresses_symbols is not bool(taken)
    told = format_readme(Target("ctranslate2", "int8"), decoding, [])
    assert ("without_timestamps=True, suppress_tokens=[])" in told) is bool(taken)
    told = format_readme(Target("ggml", "int8"), decoding, [])
    assert ("--suppress-nst" in told) is ("suppress_nst=True" in told) is not bool(taken)

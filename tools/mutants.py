"""Small faults planted in the code, one at a time, and whether the tests see them.

    python tools/mutants.py draw                 # write mutants.json: 30 faults, those that the code still has stay
    python tools/mutants.py run [--only 3 17]    # for each: the tests of its room, in a clone of the last commit

A fault is one changed operator, constant or condition in the code of decisions, resume, loss, batches, scoring,
splits or export, drawn with a seed. Tests of the mutated file's folder run first those named after it, and end at
the first failure; `--tests` gives other tests, for faults that survive (`--tests tests`: all).
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import random
import subprocess
import sys
import tempfile
import time
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.json")
SEED = 29
AREAS = {
    "decisions": (6, ["tune/search"]),
    "resume": (4, ["tune/runs/resume.py", "tune/experiments/state.py", "trainer/training/checkpoints.py"]),
    "loss": (3, ["trainer/training/loss.py"]),
    "batches": (
        5,
        ["trainer/training/batches.py", "trainer/training/collator.py", "trainer/scoring/decoding.py"],
    ),
    "scoring": (
        5,
        ["trainer/scoring/scores.py", "trainer/scoring/intervals.py", "trainer/scoring/alignment.py"],
    ),
    "splits": (3, ["trainer/data/splits.py", "trainer/data/grouping.py"]),
    "export": (4, ["tune/export/export.py", "trainer/conversion"]),
}
"""How many faults each area has, and its files."""

PYTEST = ["-x", "-q", "-p", "no:cacheprovider", "--timeout=240", "-m", "not occasional"]

SWAPS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "and": "or", "or": "and",
    "+": "-", "-": "+", "*": "/", "/": "*", "//": "*", "True": "False", "False": "True", "not": "",
}  # fmt: skip


def main() -> None:
    """Draw the faults, or run the tests with each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("action", choices=["draw", "run"])
    parser.add_argument("--only", type=int, nargs="*", help="numbers in the list, from 1")
    parser.add_argument("--tests", nargs="*", help="instead of the tests of the file's folder")
    arguments = parser.parse_args()
    mutants = json.loads(LIST.read_text()) if LIST.is_file() else []
    if arguments.action == "draw":
        LIST.write_text(json.dumps(drawn(mutants, random.Random(SEED)), indent=1) + "\n")
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        subprocess.run(["git", "clone", "-q", "--shared", ROOT, copy], check=True)
        if (ROOT.parent / "shared").is_dir():  # data
            (copy.parent / "shared").symlink_to(ROOT.parent / "shared")
        for number, mutant in enumerate(mutants, 1):
            if arguments.only and number not in arguments.only:
                continue
            began = time.monotonic()
            mutant["killed_by"] = killed_by(mutant, copy, arguments.tests)
            LIST.write_text(json.dumps(mutants, indent=1) + "\n")
            seconds = time.monotonic() - began
            print(f"{number}/{len(mutants)} {mutant['file']} {mutant['function']}: ", end="")
            print(f"{mutant['killed_by'] or 'survives'} ({seconds:.0f} s)", flush=True)
    killed = sum(bool(mutant.get("killed_by")) for mutant in mutants)
    print(f"{killed} of {len(mutants)} killed")


def drawn(known: list[dict[str, Any]], random_: random.Random) -> list[dict[str, Any]]:
    """The faults of every area: those of `known` that can still be planted, and new ones."""
    found = []
    for area, (count, paths) in AREAS.items():
        kept = [one for one in known if one["area"] == area and planted(one, ROOT) is not None]
        files = [file for path in paths for file in sorted((ROOT / path).glob("*.py")) or [ROOT / path]]
        every = [one for file in files for one in faults(file)]
        random_.shuffle(every)
        for one in every:
            # Of an area of several files no more than two of each, and none of a statement twice.
            beside = [other for other in kept if other["file"] == one["file"]]
            room = len(kept) < count and len(beside) < max(2, count / len(files))
            if room and one["line"] not in [other["line"] for other in kept] and compiles(one):
                kept.append({"area": area, **one})
        found += kept
    return found


def faults(path: Path) -> Iterator[dict[str, Any]]:
    """Every fault that can be planted in a function of a file."""
    text = path.read_text(encoding="utf-8")
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        row, column = token.start
        around = [each for each in functions if each.body[0].lineno <= row <= (each.end_lineno or 0)]
        new = str(int(token.string) + 1) if token.string.isdigit() else SWAPS.get(token.string)
        if around and new is not None and "strict=" not in token.line:
            line = token.line.strip()
            column -= len(token.line) - len(token.line.lstrip())
            found = {"file": str(path.relative_to(ROOT)), "function": around[-1].name, "line": line}
            yield {**found, "column": column, "old": token.string, "new": new}


def compiles(mutant: dict[str, Any]) -> bool:
    """Whether its file is still Python: a `*` may be no product."""
    try:
        ast.parse(planted(mutant, ROOT) or "")
    except SyntaxError:
        return False
    return True


def planted(mutant: dict[str, Any], root: Path) -> str | None:
    """The text of its file with the fault; none where the line is gone."""
    path = root / mutant["file"]
    if not path.is_file():
        return None
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines(keepends=True)
    for function in ast.walk(ast.parse(text)):
        if not isinstance(function, ast.FunctionDef) or function.name != mutant["function"]:
            continue
        for row in range(function.lineno - 1, function.end_lineno or 0):
            line = lines[row]
            if line.strip() == mutant["line"]:
                start = len(line) - len(line.lstrip()) + mutant["column"]
                end = start + len(mutant["old"])
                return "".join([*lines[:row], line[:start] + mutant["new"] + line[end:], *lines[row + 1 :]])
    return None


def killed_by(mutant: dict[str, Any], copy: Path, tests: list[str] | None) -> str | None:
    """The first test that fails with the fault, none where all pass."""
    text = planted(mutant, copy)
    if text is None:
        sys.exit(f"{mutant['file']} has no line {mutant['line']!r} any more; draw again")
    path = copy / mutant["file"]
    whole = path.read_text(encoding="utf-8")
    path.write_text(text, encoding="utf-8")
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *PYTEST, *(tests or own_tests(mutant, copy))],
            cwd=copy,
            env={**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        path.write_text(whole, encoding="utf-8")
    if done.returncode == 0:
        return None
    failed = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0].split(" - ")[0].split(maxsplit=1)[1] if failed else "pytest: " + done.stdout[-300:]


def own_tests(mutant: dict[str, Any], copy: Path) -> list[str]:
    """The test files of the file's folder, first those that name its module."""
    module = Path(mutant["file"]).with_suffix("")
    room = copy / "tests" / module.parent
    if not room.is_dir():  # its tests are those of the room that uses it
        room = copy / "tests/tune/export"
    name = str(module).replace("/", ".")
    every = sorted(room.glob("test_*.py"), key=lambda path: (name not in path.read_text(), path))
    return [str(path.relative_to(copy)) for path in every]


if __name__ == "__main__":
    main()

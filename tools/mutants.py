"""Small faults planted in the code, one at a time, and whether the tests see them.

    python tools/mutants.py draw                 # write mutants.json: 30 faults, those that the code still has stay
    python tools/mutants.py run [--only 3 17]    # for each: the tests of its room, in a copy of the checkout

A fault is one changed operator, constant or condition in the code of decisions, resume, loss, batches, scoring,
splits or export, drawn with a seed. Tests of the mutated file's folder run first those named after it, and end at
the first failure; `--tests` gives other tests, for faults that survive (`--tests tests`: all).
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LIST = Path(__file__).with_name("mutants.json")
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

OPERATORS: dict[type, str] = {
    ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "==",
    ast.In: "not in", ast.NotIn: "in", ast.Is: "is not", ast.IsNot: "is",
    ast.And: "or", ast.Or: "and", ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*",
}  # fmt: skip


def main() -> None:
    """Draw the faults, or run the tests with each."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("action", choices=["draw", "run"])
    parser.add_argument("--seed", type=int, default=29)
    parser.add_argument("--only", type=int, nargs="*", help="numbers in the list, from 1")
    parser.add_argument("--tests", nargs="*", help="instead of the tests of the file's folder")
    arguments = parser.parse_args()
    mutants = json.loads(LIST.read_text()) if LIST.is_file() else []
    if arguments.action == "draw":
        write(drawn(mutants, random.Random(arguments.seed)))
        return
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "checkout"
        copy_checkout(copy)
        for number, mutant in enumerate(mutants, 1):
            if arguments.only and number not in arguments.only:
                continue
            began = time.monotonic()
            mutant["killed_by"] = killed_by(mutant, copy, arguments.tests)
            write(mutants)
            seconds = time.monotonic() - began
            print(f"{number}/{len(mutants)} {mutant['file']} {mutant['function']}: ", end="")
            print(f"{mutant['killed_by'] or 'survives'} ({seconds:.0f} s)", flush=True)
    killed = sum(bool(mutant.get("killed_by")) for mutant in mutants)
    print(f"{killed} of {len(mutants)} killed")


def drawn(known: list[dict[str, Any]], random_: random.Random) -> list[dict[str, Any]]:
    """The faults of every area: those of `known` that can still be planted, and new ones."""
    found = []
    for area, (count, places) in AREAS.items():
        kept = [one for one in known if one["area"] == area and planted(one, ROOT) is not None]
        names = [one["file"] for one in kept]
        every = [one for path in files(places) for one in faults(path)]
        random_.shuffle(every)
        for one in every:
            # Of an area of several files no more than two of each, and none of a statement twice.
            seen = one["line"] in [other["line"] for other in kept] or names.count(one["file"]) >= max(
                2, count / len(files(places))
            )
            if len(kept) < count and not seen:
                kept.append({"area": area, **one})
                names.append(one["file"])
        found += kept
    return found


def files(places: list[str]) -> list[Path]:
    """The Python files of some files and folders that exist."""
    paths = [ROOT / place for place in places]
    return [
        file
        for path in paths
        for file in (sorted(path.glob("*.py")) if path.is_dir() else [path] * path.exists())
    ]


def faults(path: Path) -> Iterator[dict[str, Any]]:
    """Every fault that can be planted in a file."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef):
            continue
        for node in (part for statement in function.body for part in ast.walk(statement)):
            for row, column, old, new in changes(node, lines):
                yield {
                    "file": str(path.relative_to(ROOT)),
                    "function": function.name,
                    "line": lines[row].strip(),
                    "column": column - (len(lines[row]) - len(lines[row].lstrip())),
                    "old": old,
                    "new": new,
                }


def changes(node: ast.AST, lines: list[str]) -> Iterator[tuple[int, int, str, str]]:
    """Row, column, text and new text of the changes of one node."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from between(node.left, node.ops[0], node.comparators[0], lines)
    elif isinstance(node, ast.BoolOp):
        yield from between(node.values[0], node.op, node.values[1], lines)
    elif isinstance(node, ast.BinOp):
        yield from between(node.left, node.op, node.right, lines)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        row = node.lineno - 1
        old = lines[row][node.col_offset : node.end_col_offset]
        new = str(not node.value) if isinstance(node.value, bool) else str(node.value + 1)
        # Positions in an f-string are not right; what is said of `strict` changes nothing.
        if old == str(node.value) and "strict=" not in lines[row]:
            yield row, node.col_offset, old, new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node.lineno - 1, node.col_offset, "not ", ""


def between(
    left: ast.expr, operator: ast.AST, right: ast.expr, lines: list[str]
) -> Iterator[tuple[int, int, str, str]]:
    """The change of the operator between two operands on one line."""
    if type(operator) not in OPERATORS or left.end_lineno != right.lineno or left.end_lineno is None:
        return
    row, start, end = right.lineno - 1, left.end_col_offset or 0, right.col_offset
    old = lines[row][start:end]
    if old.strip() and "(" not in old and ")" not in old and lines[row].isascii():
        yield row, start, old, f" {OPERATORS[type(operator)]} "


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
            [
                sys.executable,
                "-m",
                "pytest",
                "-x",
                "-q",
                "-p",
                "no:cacheprovider",
                *(tests or own_tests(mutant, copy)),
            ],
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
    every = sorted(room.glob("test_*.py"))
    return [
        str(path.relative_to(copy)) for path in sorted(every, key=lambda path: name not in path.read_text())
    ]


def copy_checkout(target: Path) -> None:
    """The tracked files, and a link to the data beside the checkout."""
    names = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in names.stdout.splitlines():
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, target / name)
    if (ROOT.parent / "shared").is_dir():
        (target.parent / "shared").symlink_to(ROOT.parent / "shared")


def write(mutants: list[dict[str, Any]]) -> None:
    """Write the list."""
    LIST.write_text(json.dumps(mutants, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

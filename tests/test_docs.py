"""What the pages say: commands that the real parsers accept, links that lead somewhere, tests that are there."""

import argparse
import csv
import itertools
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from trainer.__main__ import main as trainer_main
from trainer.config import TrainConfig
from tune.cli import COMMANDS, main

ROOT = Path(__file__).resolve().parents[1]
FRONT = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md")]
DOCS = sorted((ROOT / "docs").glob("*.md"))
PAGES = [*FRONT, *DOCS]
MARK = "<!-- not run by a test"
"""Before a block with commands of other programs; the comment goes on with the reason."""
OTHERS_OPTIONS = {"--env-manager", "--no-flash-attn", "--num-cpus", "--shm-size"}
"""Options of other programs that the texts name: mlflow, whisper.cpp, ray, docker."""
LONGEST = {"README.md": 150, "ARCHITECTURE.md": 120, "CONTRIBUTING.md": 100}


class Block(NamedTuple):
    """A fenced or indented block of code."""

    page: Path
    line: int
    """Number of its first line of code."""
    language: str
    """What stands behind the fence; `sh` where the block is indented."""
    lines: list[str]
    marked: bool


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> Iterator[Block]:
    lines = page.read_text(encoding="utf-8").splitlines()
    number, marked = 0, False
    while number < len(lines):
        start, fence = number, re.fullmatch(r"```(\w*)", lines[number])
        if fence:
            number = lines.index("```", start + 1)
            yield Block(page, start + 2, fence[1], lines[start + 1 : number], marked)
        elif lines[number].startswith("    ") and not lines[number - 1].strip():
            while number + 1 < len(lines) and lines[number + 1].startswith("    "):
                number += 1
            yield Block(page, start + 1, "sh", [line[4:] for line in lines[start : number + 1]], marked)
        if lines[start].strip():
            marked = lines[start].startswith(MARK)
        number += 1


def commands(block: Block) -> Iterator[tuple[int, str]]:
    """Command lines with the numbers of their lines; what ends in a backslash goes on in the next one."""
    text, first = "", block.line
    for number, line in enumerate(block.lines, start=block.line):
        first = first if text else number
        text += line.removesuffix("\\")
        if line.endswith("\\"):
            continue
        ours = re.search(r"(?:^|\s{2,})(tune-whisper .*)", text)
        if ours or block.language == "sh":
            yield first, ours[1] if ours else text
        text = ""


def prose(page: Path) -> str:
    return re.sub(r"(?ms)^```.*?^```$|^<!--.*?-->$|^    .*?$", "", page.read_text(encoding="utf-8"))


BLOCKS = [block for page in PAGES for block in blocks(page)]
SHOWN = [
    pytest.param(command, block, id=f"{name(block.page)}:{number}")
    for block in BLOCKS
    for number, command in commands(block)
]
REFERENCES = sorted(
    {
        (name(page), span)
        for page in PAGES
        for span in re.findall(r"`((?:tune-whisper |--[a-z])[^`]*)`", prose(page))
    }
)
"""Commands and options that the text names."""


class AcceptedError(Exception):
    """A parser has taken the words; nothing is run after it."""

    def __init__(self, parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
        super().__init__(parser.prog)
        self.parser, self.arguments = parser, arguments


@pytest.fixture
def _only_parse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Commands end behind their parsers, in an empty folder."""
    parse_args = argparse.ArgumentParser.parse_args

    def parse(self: argparse.ArgumentParser, words: list[str]) -> None:
        raise AcceptedError(self, argparse.Namespace() if "--help" in words else parse_args(self, words))

    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
    monkeypatch.chdir(tmp_path)


def accepted(words: list[str]) -> AcceptedError:
    """What the command's own parser makes of the words; the test fails where it refuses them."""
    with pytest.raises(AcceptedError) as found:
        main(words)
    return found.value


def check_settings(given: list[str]) -> None:
    pairs = (item.partition("=") for item in given)
    TrainConfig.from_dict(
        {"data": "org/speech"} | {key: None if value == "null" else value for key, _, value in pairs}
    )


@pytest.mark.usefixtures("_only_parse")
@pytest.mark.parametrize(("command", "block"), SHOWN)
def test_a_command_is_accepted_or_marked(command: str, block: Block) -> None:
    words = shlex.split(re.sub(r"\s+[<>|] .*", "", command), comments=True)
    if words[:3] == ["python", "-m", "trainer"]:
        with pytest.raises(AcceptedError):
            trainer_main(words[3:])
    elif words[0] == "make":
        assert re.search(rf"(?m)^{words[1]}\b.*:", (ROOT / "Makefile").read_text(encoding="utf-8"))
    elif words[:2] == ["pip", "install"]:
        declared = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
        for extra in ",".join(re.findall(r"\[(.+)\]", words[-1])).split(","):
            assert not extra or re.search(rf"(?m)^{extra} = \[", declared), extra
    elif words[0] == "tune-whisper":
        cut = words.index("--") if words[1] == "submit" else len(words)
        for part in (words[1:cut] + ["--"] * (cut < len(words)), words[cut + 1 :]):
            if part:
                check_settings(getattr(accepted(part).arguments, "set", []))
    else:
        assert block.marked, (
            f"{words[0]}: a command of another program needs {MARK}: why --> before its block"
        )


@pytest.mark.usefixtures("_only_parse")
def test_commands_and_options_that_the_text_names_are_there() -> None:
    parsers = [accepted([*each, "--help"]).parser for each in ([], *([word] for word in COMMANDS))]
    for action in [action for parser in parsers for action in parser._actions]:
        if isinstance(action, argparse._SubParsersAction):
            parsers += action.choices.values()
    options = OTHERS_OPTIONS.union(*(parser._option_string_actions for parser in parsers))
    wrong = [
        (page, span)
        for page, span in REFERENCES
        if {word.split("=")[0] for word in span.split() if re.match(r"--[a-z]", word)} - options
        or (
            span.startswith("tune-whisper ") and span.split()[1][0] != "-" and span.split()[1] not in COMMANDS
        )
    ]
    assert REFERENCES and wrong == []


SPACES = [
    block
    for page in ("README.md", "docs/search_space.md")
    for block in blocks(ROOT / page)
    if block.language == "yaml"
]


@pytest.mark.parametrize("block", SPACES)
def test_a_space_file_is_one(
    block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The name is refused, so that nothing heavy is begun; the file is read before."""
    monkeypatch.chdir(tmp_path)
    for text in ("\n".join(block.lines), "\n".join(["weight_decai: 0.1", *block.lines])):
        Path("space.yaml").write_text(text, encoding="utf-8")
        assert main(["--space", "space.yaml", "--experiment", "no/name"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].split()[0] for line in lines] == ["--experiment", "space.yaml"]


@pytest.mark.parametrize("block", [block for block in BLOCKS if block.language == "python"])
def test_python_is_python(block: Block) -> None:
    compile("\n".join(block.lines), name(block.page), "exec")


def anchors(page: Path) -> set[str]:
    """GitHub's names for the headings of a page."""
    titles = re.findall(r"(?m)^#+ (.+)$", prose(page))
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"https?://", target):
            continue
        path, _, anchor = target.partition("#")
        found = (page.parent / path).resolve() if path else page
        assert found.is_relative_to(ROOT) and found.exists(), f"{name(page)}: {target}"
        assert not anchor or anchor in anchors(found), f"{name(page)}: {target}: no such heading"


def test_the_index_has_every_page() -> None:
    index = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in DOCS if f"]({page.name})" not in index] == ["README.md"]


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_tests_that_are_named_are_there(page: Path) -> None:
    for path, function in re.findall(r"(tests/[\w/]+\.py)(?:::(\w+))?", page.read_text(encoding="utf-8")):
        assert (ROOT / path).is_file(), f"{name(page)}: {path}"
        assert not function or f"def {function}(" in (ROOT / path).read_text(encoding="utf-8"), function


@pytest.mark.parametrize("page", LONGEST)
def test_pages_that_are_read_first_are_short(page: str) -> None:
    assert len((ROOT / page).read_text(encoding="utf-8").splitlines()) <= LONGEST[page]


def test_the_architecture_names_files_that_are_there() -> None:
    [tree] = [block for block in blocks(ROOT / "ARCHITECTURE.md") if "tune/" in block.lines]
    files, folders, above = set(), set(), [""]
    for line in tree.lines:
        depth = (len(line) - len(line.lstrip())) // 2
        for word in itertools.takewhile(re.compile(r"\w+(\.py|/)").fullmatch, line.split()):
            (folders if word.endswith("/") else files).add("".join(above[: depth + 1]) + word)
            if word.endswith("/"):
                above[depth + 1 :] = [word]
    assert len(files) > 80
    assert sorted(path for path in files if not (ROOT / path).is_file()) == []
    assert sorted(path for path in folders if not (ROOT / path).is_dir()) == []


def test_the_published_fine_tunings_are_those_that_a_dry_run_quotes() -> None:
    with (ROOT / "trainer" / "model" / "published.csv").open(encoding="utf-8", newline="") as file:
        expected = [
            {
                **row,
                "model": row["model"].removeprefix("whisper-"),
                "error_rate": re.sub(r"([\d.]+)$", r"\1 %", row["error_rate"]),
                "source": row["source"].replace("arXiv:", "arxiv.org/abs/"),
            }
            for row in csv.DictReader(file)
        ]
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    table = text.split("## Published fine-tunings")[1].split("\n## ")[0]
    lines = [line for line in table.splitlines() if line.startswith("| ")][2:]
    columns = ("model", "method", "learning_rate", "batch", "data", "error_rate", "source")
    found = [dict(zip(columns, map(str.strip, line.strip("|").split("|")), strict=True)) for line in lines]
    for row in found:
        row["source"] = row["source"].partition("(https://")[2].rstrip(")")
    assert found == [{name: row[name] for name in columns} for row in expected]

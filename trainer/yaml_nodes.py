"""YAML with line numbers: nodes instead of values, and a list that problems are collected in."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from typing import Any

import yaml


class Problems:
    """Problems of one file, each with its line; collected, so that all are reported at once."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []

    def add(self, where: yaml.Node | int, text: str) -> None:
        """Note a problem at a node, or in a line."""
        self.found.append((where if isinstance(where, int) else line_of(where), text))


def compose(
    text: str, problems: Problems, *, empty: str = "name at least one parameter to search"
) -> yaml.Node | None:
    """The root node of a YAML text; `None`, with a problem noted, for one that is broken or empty, to be mended so."""
    try:
        root: yaml.Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        words = " ".join(part for part in (error.problem, error.context) if part)
        problems.add(mark.line + 1 if mark else 1, f"not valid YAML: {words}")
        return None
    except yaml.reader.ReaderError as error:  # a character that YAML forbids: it gives a position, no line
        line = text.count("\n", 0, error.position) + 1
        problems.add(line, f"not valid YAML: the character {chr(error.character)!r} is not allowed")
        return None
    if root is None:
        problems.add(1, f"the file is empty; {empty}")
    return root


def items(
    node: yaml.MappingNode, problems: Problems, where: str = ""
) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Key, key node and value node of a mapping; a key given twice is a problem (YAML keeps the last)."""
    first_lines: dict[str, int] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, yaml.ScalarNode):
            problems.add(key_node, f"{where}a key must be a name")
        elif key_node.value in first_lines:
            first = first_lines[key_node.value]
            problems.add(key_node, f"{where}{key_node.value}: given twice, first in line {first}; remove one")
        else:
            first_lines[key_node.value] = line_of(key_node)
            yield key_node.value, key_node, value_node


def scalar(node: yaml.Node, as_text: bool = False) -> Any:
    """The plain value of a node: `None`, bool, number or text. Lists and mappings come out for messages only.

    `as_text` takes what is written even where YAML reads a bool or a number (`no`, the code of Norwegian).
    """
    if not isinstance(node, yaml.ScalarNode):
        return ["..."] if isinstance(node, yaml.SequenceNode) else {"...": "..."}
    tag = node.tag.rpartition(":")[2]
    if tag == "null" or (tag in ("bool", "int", "float") and not as_text):
        try:
            return yaml.SafeLoader("").construct_object(node)
        except (ValueError, KeyError, IndexError):  # a tag that is written and does not fit, as `!!float x`
            return node.value
    return node.value


def line_of(node: yaml.Node) -> int:
    """The line that a node starts in, counted from 1."""
    return int(node.start_mark.line) + 1


def nearest(key: str, names: Iterable[str]) -> str | None:
    """The name that is nearest to `key`, if any is near."""
    matches = difflib.get_close_matches(key, list(names), n=1, cutoff=0.75)
    return matches[0] if matches else None

"""CSV and TSV as people and programs write them: which separator, whether quotes are marks, where a mistake is."""

from __future__ import annotations

import csv
import io
import itertools
import re
import sys
from pathlib import Path
from typing import Any, Literal

from trainer.errors import DataError

_SEPARATORS = ",;\t|"
"""Of .csv files: spreadsheets in half of Europe write semicolons."""
_SEPARATOR_LINE = re.compile(r'"?sep=([,;|\t])"?[ \t]*\r?\n')
_QUOTED = r'"[^"]*(?:""[^"]*)*"'
_ROWS_LOOKED_AT = 200
"""From which the separator is told."""


def read_separated(path: Path, text: str) -> tuple[list[str], list[list[str]]]:
    """The names in the first line, and all other rows, which are as long.

    A file whose name ends in `.tsv` is separated by tabs.

    Raises:
        DataError: a row has more fields than the first line, or a quote is not closed; with the line where the row,
            or the quote, begins.
    """
    declared = _SEPARATOR_LINE.match(text)  # by Excel, in a line of its own
    text, before = (text[declared.end() :], 1) if declared else (text, 0)
    tsv = path.suffix.lower() == ".tsv" and not declared
    separator = "\t" if tsv else declared[1] if declared else _find_separator(text)
    quoted = not tsv or _is_quoted_tsv(text)
    reader = _reader(text, separator, quoted=quoted, strict=True)
    rows: list[list[str]] = []
    begin = 1
    try:
        header = [name.strip() for name in next(reader, [])]
        begin = reader.line_num + 1
        for row in reader:
            if len(row) > len(header):
                raise DataError(
                    f"{path}, line {begin + before}: {len(row)} fields where the header has {len(header)}; "
                    'put text that holds the separator in "quotes"'
                )
            begin = reader.line_num + 1
            if row:
                rows.append(row + [""] * (len(header) - len(row)))
    except csv.Error as error:
        what = f"not a valid {path.suffix[1:]} file: {error}"
        if quoted:
            what = (
                "a field begins with a quote and does not end with one; close it, and double the quotes that belong to "
                'the text: "He said ""no"""'
            )
        raise DataError(f"{path}, line {begin + before}: {what}") from error
    return header, rows


def _reader(text: str, separator: str, *, quoted: bool, strict: bool) -> Any:
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if quoted else csv.QUOTE_NONE
    csv.field_size_limit(sys.maxsize)  # of a whole process: a column may hold the times of all words
    # `newline=""` leaves line breaks inside quotes to the reader.
    return csv.reader(io.StringIO(text, newline=""), delimiter=separator, quoting=quoting, strict=strict)


def _find_separator(text: str) -> str:
    """Of those in the first line the one that cuts most rows into as many fields; of several, the first to come.

    `csv.Sniffer` goes by the frequency of characters, and so takes letters, spaces and commas of sentences.
    """
    first = text.split("\n", 1)[0]
    candidates = sorted((separator for separator in _SEPARATORS if separator in first), key=first.index)
    return max(candidates, key=lambda separator: _even_rows(text, separator), default=",")


def _even_rows(text: str, separator: str) -> float:
    """Share of the first rows that have as many fields as the first line, if that has several."""
    rows = _reader(text, separator, quoted=True, strict=False)
    try:
        lengths = [len(row) for row in itertools.islice(rows, _ROWS_LOOKED_AT) if row]
    except csv.Error:  # told by who reads all of it
        return 0.0
    return lengths.count(lengths[0]) / len(lengths) if lengths and lengths[0] > 1 else 0.0


def _is_quoted_tsv(text: str) -> bool:
    """Whether quotes in a TSV are marks of quoting or part of the texts.

    They are marks where the header has them; where more fields are well-formed and have doubled quotes inside than
    begin with a quote and are not; and where only they keep rows together, for some texts have line breaks. Common
    Voice quoted in 2019 and 2020, and never since.
    """
    if text.startswith('"'):
        return True
    # Fields that begin with a quote, up to one that ends them, if any does.
    begun = list(re.finditer(rf'(?:^|(?<=[\t\n]))(?:({_QUOTED})(?=\t|\r?\n|\r?\Z)|"[^\t\n]*)', text))
    broken = sum(field[1] is None for field in begun)
    doubled = sum(field[1] is not None and '""' in field[1][1:-1] for field in begun)
    if doubled > broken:
        return True
    if broken or not any("\n" in field[0] for field in begun):
        return False
    return _all_even(text, quoted=True) and not _all_even(text, quoted=False)


def _all_even(text: str, *, quoted: bool) -> bool:
    rows = _reader(text, "\t", quoted=quoted, strict=False)
    return len({len(row) for row in rows if row}) == 1

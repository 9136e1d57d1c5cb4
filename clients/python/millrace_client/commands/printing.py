"""What a command prints: tables for people, JSON for programs.

On a terminal a table fits its width; elsewhere each row is one line, as wide as it has to be. Nothing that a record
holds reaches the terminal as a control sequence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from itertools import zip_longest
from typing import Any, Final, NamedTuple

from rich import box
from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

UNITS: Final = ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min"), (1_000, "s"))
NONE: Final = "-"


class Output(StrEnum):
    """How results are shown."""

    TABLE = "table"
    JSON = "json"


class Column(NamedTuple):
    """A column: its title, the text of an item in it, whether it is of numbers."""

    title: str
    text: Callable[[Any], str]
    is_number: bool = False


def print_json(data: Any, *, indent: int | None = 2) -> None:
    """Data as JSON; in ASCII where the output can not have more."""
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    print(json.dumps(data, indent=indent, ensure_ascii=not is_unicode))


def print_table(items: Iterable[Any], columns: Sequence[Column]) -> None:
    """A row for each item; the titles alone where there is none."""
    rows = [[printable(column.text(item)) for column in columns] for item in items]
    if not sys.stdout.isatty():
        _print_lines([[column.title.upper() for column in columns], *rows], columns)
        return
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column.title, justify="right" if column.is_number else "left", overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))
    Console(highlight=False).print(table)


def _print_lines(rows: list[list[str]], columns: Sequence[Column]) -> None:
    widths = [max(map(cell_len, column)) for column in zip_longest(*rows, fillvalue="")]
    for row in rows:
        cells = []
        for text, width, column in zip(row, widths, columns, strict=True):
            space = " " * (width - cell_len(text))
            cells.append(space + text if column.is_number else text + space)
        print("  ".join(cells).rstrip())


def print_members(members: Mapping[str, str]) -> None:
    """Names and texts, a line each."""
    width = max(map(len, members), default=0)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for name, text in members.items():
        if sys.stdout.isatty():
            grid.add_row(Text(name, style="bold"), Text(printable(text)))
        else:
            print(f"{name:{width}}  {printable(text)}")
    if grid.rows:
        Console(highlight=False).print(grid)


# ---------------------------------------------------------------- texts


def printable(text: str) -> str:
    """A text in which control characters are shown, not carried out."""
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _escaped(char: str) -> str:
    return json.dumps(char)[1:-1] if ord(char) != 0x7F else "\\u007f"


def compact(value: Any) -> str:
    """A value as JSON on one line."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def moment(ms: int | None) -> str:
    """A time in ms, as UTC; the number itself, where no calendar has it."""
    if ms is None:
        return NONE
    try:
        at = datetime.fromtimestamp(ms // 1_000, UTC)
    except (ValueError, OverflowError, OSError):
        return str(ms)
    return f"{at:%Y-%m-%dT%H:%M:%S}.{ms % 1_000:03}Z"


def duration(ms: int | None) -> str:
    """A duration in the largest unit that it is a whole number of."""
    if ms is None:
        return NONE
    return next((f"{ms // size} {unit}" for size, unit in UNITS if ms and ms % size == 0), f"{ms} ms")


def optional(value: object) -> str:
    """A text; a dash for none."""
    return NONE if value is None or value == "" else str(value)

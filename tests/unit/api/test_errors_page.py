"""docs/errors.md: every code that an answer or a failed job may carry is on it, with the status that it has."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from service.problems import _CODES, status_of
from service.streams import errors
from service.streams.errors import StreamError

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "errors.md").read_text()
MAKERS = {"ProblemError", "problem", "refused", "_refused", "_refuse"}  # what is called with a code among its arguments
OF_JOBS_ALONE = {"source_truncated", "io_failed", "out_of_memory"}  # made where a job is failed


def leaves(kind: type[StreamError]) -> Iterator[type[StreamError]]:
    """The errors that are raised: those that nothing is more exact than."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    if not children:
        yield kind
    for child in children:
        yield from leaves(child)


def said_in_code() -> set[str]:
    """The codes that the service's own refusals are made with."""
    found = set()
    for path in (ROOT / "service").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and _name(node.func) in MAKERS:
                texts = [arg.value for arg in node.args[:3] if isinstance(arg, ast.Constant)]
                found |= {text for text in texts if isinstance(text, str) and re.fullmatch("[a-z_]+", text)}
    return found


def _name(called: ast.expr) -> str:
    return str(getattr(called, "id", getattr(called, "attr", "")))


def rows() -> Iterator[tuple[str, str]]:
    """Each code on the page, and what stands for its status (no number for those of jobs)."""
    for codes, status in re.findall(r"^\| (`[^|]*) \| ([^|]*) \|", PAGE, re.MULTILINE):
        for code in re.findall("`([a-z_]+)`", codes):
            yield code, status


def test_each_code_has_a_row_and_each_row_a_code() -> None:
    known = {kind.code for kind in leaves(StreamError)} | said_in_code() | set(_CODES.values()) | OF_JOBS_ALONE
    assert {code for code, _ in rows()} == known


def test_the_statuses_are_those_that_are_answered() -> None:
    shown = {code: int(status) for code, status in rows() if status.isdigit()}
    for kind in leaves(StreamError):
        if kind.code in shown:
            assert shown[kind.code] == status_of(kind.__new__(kind)), kind.code
    assert all(shown[code] == status for status, code in _CODES.items())

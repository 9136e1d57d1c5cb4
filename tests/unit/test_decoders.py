"""A Struct's fields are worked out while modules are imported, by one thread: msgspec takes a process along (a read
through NULL) where a second thread comes to use a Struct whose fields another one is working out.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import msgspec

from service.catalog.converters import converter

ROOT = Path(__file__).parents[2]
CONVERTERS = ROOT / "service/catalog/converters.py"
WORKED_OUT: list[type] = []


def integers() -> type:
    WORKED_OUT.append(int)
    return int


class _Field(msgspec.Struct):
    number: "integers()"  # type: ignore[valid-type]  # noqa: UP037


class _Whole(msgspec.Struct):
    field: _Field


def test_a_converter_has_worked_out_the_fields_before_it_converts() -> None:
    convert = converter(_Whole)
    assert [int] == WORKED_OUT
    assert convert({"field": {"number": 1}}) == _Whole(_Field(1))
    assert [int] == WORKED_OUT


def test_types_are_given_to_msgspec_where_modules_are_imported() -> None:
    files = [file for package in ("service", "spark_jobs") for file in sorted((ROOT / package).rglob("*.py"))]
    assert CONVERTERS in files
    found = {f"{f.relative_to(ROOT)}:{line}" for f in files if f != CONVERTERS for line in _late(f.read_text())}
    assert found == set()


def test_what_comes_late_is_found() -> None:
    late = "def f(x):\n    {}\n"
    for call in ("msgspec.convert(x, A)", "msgspec.json.Decoder(A)", "msgspec.json.decode(x, type=A)", "converter(A)"):
        assert list(_late(late.format(call))) == [2]
    assert list(_late(late.format("msgspec.json.decode(x)"))) == []
    assert list(_late("made = msgspec.json.Decoder(A)\n")) == []
    assert list(_late("from msgspec import convert\n")) == [1]


def _late(source: str) -> Iterator[int]:
    """The lines of a module that give msgspec a type when they are called, or take its functions by their names."""
    module = ast.parse(source)
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "msgspec":
            yield from (node.lineno for name in node.names if name.name in {"convert", "decode", "Decoder"})
    functions = (
        node for node in ast.walk(module) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
    )
    yield from {node.lineno for function in functions for node in ast.walk(function) if _gives_a_type(node)}


def _gives_a_type(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call):
        return False
    name = ast.unparse(node.func)
    return (
        name in {"converter", "msgspec.convert"}
        or (name.startswith("msgspec.") and name.endswith(".Decoder"))
        or (name.startswith("msgspec.") and any(keyword.arg == "type" for keyword in node.keywords))
    )

"""A public class's name stands once in the project: whoever reads or searches it finds the one that is meant."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("service", "spark_jobs", "benchmarks")


def test_a_public_class_name_stands_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for file in (file for package in PACKAGES for file in sorted((ROOT / package).rglob("*.py"))):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                found[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    assert "JobRow" in found
    assert {name: places for name, places in found.items() if len(places) > 1} == {}

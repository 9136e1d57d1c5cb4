"""The tutorials, run as they stand against a service that works: what they assert holds."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests import web_log
from tests.serving import Serving

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def _environment(working: Serving, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    values = {"MILLRACE_URL": working.url, "MILLRACE_API_KEY": working.secrets["admin"], "MPLBACKEND": "agg"}
    for name, value in {**values, "BOOKS": str(tmp_path / "books.db"), "LOG": str(web_log.PATH)}.items():
        monkeypatch.setenv(name, value)


def run(name: str, blocks: list[str]) -> dict[str, Any]:
    """What the blocks of a tutorial leave, one after the other."""
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, name, "exec"), names)
    names["client"].close()
    return names


def page(name: str) -> dict[str, Any]:
    return run(name, re.findall(r"^```python\n(.*?)^```", (ROOT / name).read_text(), re.MULTILINE | re.DOTALL))


def test_payments_are_booked_once() -> None:
    assert sorted(page("docs/tutorials/payments.md")["booked"]) == ["p-1", "p-2", "p-3"]


def test_an_alert_is_raised_once_and_for_good() -> None:
    assert page("docs/tutorials/alerts.md")["alert"].key == "anna"


def test_the_notebook_runs() -> None:
    cells = json.loads((ROOT / "docs" / "tutorials" / "web-log.ipynb").read_text())["cells"]
    left = run("web-log.ipynb", ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"])
    assert left["found"].entries
    assert len(left["figure"].axes) == 2
    left["plt"].close(left["figure"])

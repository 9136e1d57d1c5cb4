"""The README's figures come from the results of `make bench`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import report
from benchmarks.events import Workload
from benchmarks.report import BEGIN, END, Measurement

ROWS = [
    Measurement("dedup", 5_750_000, "rec/s", "…", "Spark", 656_000, 8.77, 5.5, "≥ 5×"),
    Measurement("moved", 395_000, "rec/s", "…", "Spark", 65_800, 6.0),
    Measurement("lookup", 12_305.2, "/s", "…", bar="≥ 8,000"),
    Measurement("wait, p50", 28.04, "ms", "…"),
]


def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_quick: bool = False) -> Path:
    """The README's copy, beside results as a run writes them."""
    page = tmp_path / "README.md"
    page.write_text(report.README.read_text())
    monkeypatch.setattr(report, "README", page)
    monkeypatch.setattr(report, "RESULTS", tmp_path / "results.json")
    report.report(ROWS, Workload(8_000_000), 0.1, effort="all of it", is_quick=is_quick)
    assert [Measurement(**row) for row in json.loads(report.RESULTS.read_text())["rows"]] == ROWS
    return page


def test_the_readme_has_one_place_for_figures() -> None:
    page = report.README.read_text()
    assert (page.count(BEGIN), page.count(END)) == (1, 1)
    assert page.index(BEGIN) < page.index(END)


def test_the_figures_of_a_run_replace_those_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = results(tmp_path, monkeypatch)
    monkeypatch.setattr(report, "FIRST", ("lookup",))
    before = page.read_text()
    report.main()
    head, _, rest = page.read_text().partition(BEGIN)
    text, _, tail = rest.partition(END)
    assert before.startswith(head)
    assert before.endswith(tail)
    assert "| dedup | 5.75 M rec/s | Spark: 656,000 rec/s | **8.8×** | 5.5× |\n" in text
    assert "| moved | 395,000 rec/s | Spark: 65,800 rec/s | **6.0×** |  |\n" in text
    first, _, folded = text.partition("<details><summary>All other figures</summary>\n")
    assert first.endswith("| lookup | 12,305 /s |\n\n")
    assert "| wait, p50 | 28.0 ms |\n\n</details>\n" in folded
    assert "; all of it; Nexmark-like bids (zipf keys, 10% twice, 5 s disorder)" in text
    report.main()
    assert page.read_text() == head + BEGIN + text + END + tail, "once more changes nothing"


def test_figures_of_a_quick_run_do_not_go_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = results(tmp_path, monkeypatch, is_quick=True)
    before = page.read_text()
    with pytest.raises(SystemExit, match="quick run"):
        report.main()
    assert page.read_text() == before

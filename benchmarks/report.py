"""The results of `make bench`: a Markdown table on standard output, JSON beside this file, figures for the README.

`python -m benchmarks.report` puts the figures of the last full run into the README, between the two comments there.
"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from benchmarks.events import Workload

RESULTS: Final = Path(__file__).with_name("results.json")
README: Final = Path(__file__).parents[1] / "README.md"
BEGIN: Final = "<!-- figures of `make bench`, put here by `python -m benchmarks.report` -->\n"
END: Final = "<!-- end of the figures -->\n"
# Measures without a peer that a reader sees at once; the others are folded away behind them.
FIRST: Final = (
    "POST acknowledged to output readable, p50",
    "POST acknowledged to lookup visible, LMDB, p50",
    "lookup by key, LMDB",
    "lookup by key, Redis",
    "posts of one record, 64 keep-alive clients",
    "ingest over HTTP, arrow",
    "tail of 2,000 rec/s to 50 clients, p99",
    "SIGKILL to the first commit of each task elsewhere, worst, a warm standby",
)


@dataclass(frozen=True)
class Measurement:
    """One line of the table. `figure` is in `unit`; `ratio` is against `peer`, where there is one, and `warm_ratio`
    against the same peer once it has run before.
    """

    measure: str
    figure: float
    unit: str
    conditions: str
    peer: str = ""
    peer_figure: float | None = None
    ratio: float | None = None
    warm_ratio: float | None = None
    bar: str = ""


def report(
    rows: Sequence[Measurement], workload: Workload, load_average: float, *, effort: str, is_quick: bool
) -> None:
    """Print the table, and write the same to RESULTS; `load_average`: of the minute before; `effort`: how much was
    measured.
    """
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    machine += f", Python {platform.python_version()}; load average of the minute before: {load_average:.1f}"
    print(f"\nConditions: {machine}; workload {workload}; {effort}; all invariants on.\n")
    print("| measure | figure | peer | ratio | bar | conditions |\n|---|---|---|---|---|---|")
    for row in rows:
        peer = f"{row.peer}: {row.peer_figure:,.0f} {row.unit}" if row.peer_figure is not None else ""
        ratio = f"{row.ratio:.1f}×" if row.ratio is not None else ""
        print(f"| {row.measure} | {_shown(row.figure, row.unit)} | {peer} | {ratio} | {row.bar} | {row.conditions} |")
    results = {
        "machine": machine,
        "is_quick": is_quick,
        "effort": effort,
        "workload": asdict(workload),
        "rows": [asdict(row) for row in rows],
    }
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")


def figures(results: dict[str, Any]) -> str:
    """The results as the README shows them."""
    rows = [Measurement(**row) for row in results["rows"]]
    lines = ["| measure | figure | peer in the same run | ratio | to a warm peer |", "|---|---|---|---|---|"]
    for row in rows:
        if row.peer_figure is not None:
            warm = "" if row.warm_ratio is None else f"{row.warm_ratio:.1f}×"
            peer = f"{row.peer}: {_shown(row.peer_figure, row.unit)}"
            lines.append(f"| {row.measure} | {_shown(row.figure, row.unit)} | {peer} | **{row.ratio:.1f}×** | {warm} |")
    alone = [row for row in rows if row.peer_figure is None]
    lines += _without_peer([row for row in alone if row.measure in FIRST])
    lines += ["", "<details><summary>All other figures</summary>"]
    lines += [*_without_peer([row for row in alone if row.measure not in FIRST]), "", "</details>"]
    workload = results["workload"]
    events = f"Nexmark-like bids ({workload['keys']} keys, {workload['duplicates']:.0%} twice, "
    events += f"{workload['disorder_ms'] / 1000:g} s disorder)"
    return "\n".join([*lines, "", f"{results['machine']}; {results['effort']}; {events}.", ""])


def _without_peer(rows: Sequence[Measurement]) -> list[str]:
    lines = ["", "| measure | figure |", "|---|---|"]
    return lines + [f"| {row.measure} | {_shown(row.figure, row.unit)} |" for row in rows]


def filled(page: str, text: str) -> str:
    """A page with this text between BEGIN and END."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    return before + begin + text + end + after


def _shown(figure: float, unit: str) -> str:
    if figure >= 1_000_000:
        return f"{figure / 1_000_000:.2f} M {unit}"
    return f"{figure:,.{0 if figure >= 100 else 1}f} {unit}"


def main() -> None:
    """Fill the README; a quick run's figures do not stand there."""
    results = json.loads(RESULTS.read_text())
    if results["is_quick"]:
        raise SystemExit(f"{RESULTS} is of a quick run: `make bench` first")
    README.write_text(filled(README.read_text(), figures(results)))


if __name__ == "__main__":
    main()

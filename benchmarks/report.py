"""What `make bench` found, as a Markdown table on standard output and as JSON beside this file."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.events import Workload

RESULTS = Path(__file__).with_name("results.json")


@dataclass(frozen=True)
class Measurement:
    """One line of the table. `figure` is in `unit`; `ratio` is against `peer`, where there is one."""

    measure: str
    figure: float
    unit: str
    conditions: str
    peer: str = ""
    peer_figure: float | None = None
    ratio: float | None = None
    bar: str = ""


def report(rows: Sequence[Measurement], workload: Workload, load_average: float) -> None:
    """Print the table, and write the same to RESULTS; `load_average`: what else the machine did before."""
    machine = f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors"
    machine += f", Python {platform.python_version()}; load average of the minute before: {load_average:.1f}"
    print(f"\nConditions: {machine}; workload {workload}; all invariants on.\n")
    print("| measure | figure | peer | ratio | bar | conditions |\n|---|---|---|---|---|---|")
    for row in rows:
        peer = f"{row.peer}: {row.peer_figure:,.0f} {row.unit}" if row.peer_figure is not None else ""
        ratio = f"{row.ratio:.1f}×" if row.ratio is not None else ""
        figure = f"{row.figure:,.{0 if row.figure >= 100 else 1}f} {row.unit}"
        print(f"| {row.measure} | {figure} | {peer} | {ratio} | {row.bar} | {row.conditions} |")
    results = {"machine": machine, "workload": asdict(workload), "rows": [asdict(row) for row in rows]}
    RESULTS.write_text(json.dumps(results, indent=2, ensure_ascii=False) + "\n")

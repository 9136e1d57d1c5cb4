"""`make demo`: real records in over HTTP, through a job on Spark, out again without their duplicates.

Everything here uses the public API of a freshly started service. The result is checked against a naive count of the
same events; any difference is an error exit.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from benchmarks.events import Workload, bids, ndjson
from benchmarks.running import ARROW, NDJSON, Running

RECORDS = 1_000_000
BODY_RECORDS = 50_000
JOB = {
    "name": "unique_bids",
    "source": "bids",
    "operators": [{"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": 600_000}],
    "sink": "bids-unique",
}

console = Console()


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--keep", action="store_true", help="leave the service running")
    arguments.add_argument("--records", type=int, default=RECORDS, help="how many deliveries (%(default)s)")
    given = arguments.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="millrace-demo-"))
    running = Running(folder / "data")
    try:
        with console.status("starting the service and a local Spark"):
            running.start().wait_for_instances()
        is_right = _show(running, given.records)
        if given.keep:
            _keep_running(running)
    finally:
        if running.process.poll() is None:
            running.stop()
        shutil.rmtree(folder)
    return 0 if is_right else 1


def _show(running: Running, records: int) -> bool:
    console.print(f"[bold]Millrace[/bold] serves at {running.url}; its API pages are at /docs\n")
    with console.status(f"making {records:,} bids, a tenth of them delivered twice, out of order by seconds"):
        events = bids(Workload(records))
    running.call("POST", "/v1/streams", json={"name": "bids", "partitions": 4})
    with _progress() as progress:
        posted_s = _post(running, events, progress)
        ran_s = _run_job(running, progress)
    survivors = sum(_read(running, "bids-unique", partition).num_rows for partition in range(4))
    return _report(events, survivors, posted_s, ran_s)


def _progress() -> Progress:
    columns = TextColumn("{task.description:<28}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    return Progress(*columns, console=console)


def _post(running: Running, events: pa.Table, progress: Progress) -> float:
    bar = progress.add_task("POST …/streams/bids/records", total=events.num_rows)
    started = time.monotonic()
    for start in range(0, events.num_rows, BODY_RECORDS):
        body = ndjson(events.slice(start, BODY_RECORDS))
        headers = {"Content-Type": NDJSON, "Idempotency-Key": f"demo-{start}"}
        answer = running.call("POST", "/v1/streams/bids/records", content=body, headers=headers)
        progress.advance(bar, answer["accepted"])
    return time.monotonic() - started


def _run_job(running: Running, progress: Progress) -> float:
    bar = progress.add_task("job unique_bids on Spark", total=None)
    started = time.monotonic()
    running.call("POST", "/v1/jobs", json=JOB)
    for job in _until_caught_up(running):
        done = sum(position["position"] for position in job["positions"])
        progress.update(bar, completed=done, total=sum(position["end"] for position in job["positions"]))
    return time.monotonic() - started


def _until_caught_up(running: Running) -> Iterator[dict]:
    while True:
        job = running.call("GET", "/v1/jobs/unique_bids?wait=caught_up&timeout_ms=100")
        if job["state"] == "failed":
            raise SystemExit(f"the job failed: {job['error']}")
        yield job
        if all(position["lag"] == 0 for position in job["positions"]):
            return


def _read(running: Running, stream: str, partition: int) -> pa.Table:
    """The whole partition through the public API, page by page, as Arrow."""
    pages, offset = [], 0
    while True:
        where = {"partition": partition, "from_offset": offset, "limit": 100_000}
        answer = running.client.get(f"/v1/streams/{stream}/records", params=where, headers={"Accept": ARROW})
        answer.raise_for_status()
        page = pa.ipc.open_stream(answer.content).read_all()
        pages.append(page)
        if page.num_rows == 0:
            return pa.concat_tables(pages)
        offset = page["offset"][-1].as_py() + 1


def _report(events: pa.Table, survivors: int, posted_s: float, ran_s: float) -> bool:
    naive = len(set(zip(events["key"].to_pylist(), events["value"].to_pylist(), strict=True)))
    is_right = survivors == naive
    table = Table(title="duplicate bids removed, exactly once", title_justify="left")
    for column in ("what", "records", "seconds", "records/s"):
        table.add_column(column, justify="left" if column == "what" else "right")
    count = events.num_rows
    table.add_row("posted over HTTP (NDJSON)", f"{count:,}", f"{posted_s:.1f}", f"{count / posted_s:,.0f}")
    table.add_row("job: POST to caught up", f"{count:,}", f"{ran_s:.1f}", f"{count / ran_s:,.0f}")
    table.add_row("removed as duplicates", f"{count - survivors:,}", "", "")
    table.add_row("left in bids-unique", f"{survivors:,}", "", "")
    console.print(table)
    verdict = "[green]equal[/green]" if is_right else "[red]different[/red]"
    console.print(f"a naive count of the same events leaves {naive:,}: {verdict}")
    return is_right


def _keep_running(running: Running) -> None:
    console.print(f"\nleft running at {running.url} (key in {running.data_dir}/admin-key); Ctrl-C ends it")
    try:
        running.process.wait()
    except KeyboardInterrupt:
        console.print("ending")


if __name__ == "__main__":
    sys.exit(main())

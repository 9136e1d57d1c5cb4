"""What a commit leaves in the catalog where each of 64 tasks writes for 64 targets: chunk rows, and ends of logs.

Run through a service with an instance; counted in its database. Knows nothing of speed.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import NamedTuple

from benchmarks.running import Running

TASKS = 64
_RECORDS_A_TASK = 10 * TASKS
_STREAM, _JOB = "wide", "wide_repartition"
_COMMITS = "SELECT sum(version) FROM tasks JOIN jobs ON jobs.id = tasks.job_id WHERE jobs.name = ? AND sub_topology = 0"
_CHUNKS = (
    "SELECT count(*), sum(length(ranges)), sum(chunks.records) FROM chunks"
    " JOIN streams ON streams.id = chunks.stream_id WHERE streams.name = ?"
)
_ENDS = "SELECT count(*) FROM partitions JOIN streams ON streams.id = partitions.stream_id WHERE streams.name = ?"


class WideCommits(NamedTuple):
    """Commits of the tasks that repartition, the chunk rows and the bytes of ranges in them that these left, and the
    rows that say where the logs end.
    """

    commits: int
    chunk_rows: int
    range_bytes: int
    end_rows: int


def wide_commits(running: Running) -> WideCommits:
    """Post to each of 64 partitions records of keys that belong to all of 64, and have a job repartition them.

    Raises SystemExit where records are missing in the repartition stream: what is counted would be too little.
    """
    running.call("POST", "/v1/streams", json={"name": _STREAM, "partitions": TASKS})
    records = [
        {"key": f"k{n}", "value": None, "timestamp": n, "partition": n % TASKS} for n in range(TASKS * _RECORDS_A_TASK)
    ]
    running.call("POST", f"/v1/streams/{_STREAM}/records", json={"records": records})
    operators = [
        {"op": "repartition", "name": "spread"},
        {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1},
    ]
    running.call("POST", "/v1/jobs", json={"name": _JOB, "source": _STREAM, "operators": operators, "sink": "wide-out"})
    running.wait_until_caught_up(_JOB)
    with closing(sqlite3.connect(running.data_dir / "catalog.db")) as catalog:
        repartition = f"{_JOB}-spread-repartition"
        ((commits,),) = catalog.execute(_COMMITS, (_JOB,))
        ((chunk_rows, range_bytes, moved),) = catalog.execute(_CHUNKS, (repartition,))
        ((end_rows,),) = catalog.execute(_ENDS, (repartition,))
    running.call("POST", f"/v1/jobs/{_JOB}:stop")
    if moved != len(records):
        raise SystemExit(f"{moved} of {len(records)} records are in the repartition stream: the collector was there")
    return WideCommits(int(commits), int(chunk_rows), int(range_bytes), int(end_rows))

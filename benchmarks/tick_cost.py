"""What one tick costs before any work, three ways: the measurement behind ADR 1.

A Spark job of two Python tasks per tick; a Structured Streaming micro-batch of one row; a message to a resident task.
Run it with `python -m benchmarks.tick_cost`; it prints one line each.
"""

from __future__ import annotations

import json
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from pyspark import SparkContext
from pyspark.sql import SparkSession

TICKS = 40


def main() -> None:
    quiet = SparkSession.builder.master("local[4]").config("spark.ui.showConsoleProgress", "false")
    spark = quiet.config("spark.ui.enabled", "false").config("spark.sql.shuffle.partitions", "2").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    measured = {
        "a Spark job per tick (two Python tasks)": _job_per_tick(spark.sparkContext),
        "a Structured Streaming micro-batch (one row)": _micro_batch(spark),
        "a message to a resident Spark task and back": _resident(spark.sparkContext),
    }
    for name, seconds in measured.items():
        print(f"{name}: median {statistics.median(seconds) * 1000:.2f} ms, max {max(seconds) * 1000:.2f} ms")
    spark.stop()


def _job_per_tick(context: SparkContext) -> list[float]:
    rows = context.parallelize(range(2), 2)
    return [_timed(lambda: rows.map(lambda row: row + 1).collect()) for _ in range(TICKS + 5)][5:]


def _micro_batch(spark: SparkSession) -> list[float]:
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "in"
        source.mkdir()
        arriving = spark.readStream.schema("n INT").option("maxFilesPerTrigger", 1).json(str(source))
        for number in range(TICKS):
            (source / f"{number:03}.json").write_text(json.dumps({"n": number}))
        query = arriving.dropDuplicates(["n"]).writeStream.format("noop").trigger(availableNow=True)
        running = query.option("checkpointLocation", f"{scratch}/c").outputMode("append").start()
        running.awaitTermination()
        return [progress["durationMs"]["triggerExecution"] / 1000 for progress in running.recentProgress][5:]


def _resident(context: SparkContext) -> list[float]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        thread = threading.Thread(target=lambda: context.parallelize([port], 1).mapPartitions(_echo).collect())
        thread.start()
        peer, _ = server.accept()
        with peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            seconds = [_timed(lambda: (peer.sendall(b"x"), peer.recv(1))) for _ in range(TICKS * 10)]
        thread.join()
    return seconds


def _echo(ports: Iterable[int]) -> Iterator[int]:
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as peer:
            peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while message := peer.recv(1):
                peer.sendall(message)
        yield port


def _timed(action: object) -> float:
    started = time.perf_counter()
    action()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main()

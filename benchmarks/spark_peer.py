"""The peers: Spark's own stateful operators, in Structured Streaming, on the same deliveries and the same cores.

A process of its own: asked in JSON lines on standard input, it answers each with the seconds from the query's start to
its end. The queries read a folder of Parquet files in their order and write Parquet. Knows nothing of Millrace.

Each peer gets what suits it: the JVM's start and a first tiny query do not count; columns it does not need are never
read; micro-batches are large; state lies in the heap; there are two shuffle partitions a core. The watermark is the
disorder of the events, as is the grace of our windows; for deduplication it is the interval, for Spark takes both
from it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as sql

Times = Mapping[str, int]  # ms


class PeerQuery(NamedTuple):
    """A query over deliveries with an `event_time`, the mode in which Spark puts its results out, its watermark."""

    query: Callable[[DataFrame, Times], DataFrame]
    mode: str
    watermark: str  # which of the times


def main() -> None:
    """Answer requests `{"name", "source", "out", "files_per_batch", "times"}` until there are no more."""
    spark = _session(int(sys.argv[1]))
    for line in sys.stdin:
        asked: dict[str, Any] = json.loads(line)
        peer, source, out = PEERS[asked["name"]], Path(asked["source"]), Path(asked["out"])
        seconds = _run(_arriving(spark, source, asked["files_per_batch"]), peer, asked["times"], out)
        print(json.dumps({"seconds": seconds}), flush=True)
    spark.stop()


def _session(cores: int) -> SparkSession:
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).groupBy("id").count().collect()
    return spark


def _arriving(spark: SparkSession, source: Path, files_per_batch: int) -> DataFrame:
    schema = spark.read.parquet(str(source)).schema
    files = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(source))
    return files.withColumn("event_time", sql.timestamp_millis("timestamp"))


def _run(arriving: DataFrame, peer: PeerQuery, times: Times, out: Path) -> float:
    started = time.monotonic()
    result = peer.query(arriving.withWatermark("event_time", _span(times[peer.watermark])), times)
    writer = result.writeStream.outputMode(peer.mode).trigger(availableNow=True)
    writer = writer.option("checkpointLocation", str(out.with_name(f"{out.name}-checkpoint")))
    if peer.mode == "append":
        query = writer.format("parquet").start(str(out))
    else:  # the file sink takes appended rows only: the same files, one folder a micro-batch
        query = writer.foreachBatch(lambda rows, number: rows.write.parquet(str(out / str(number)))).start()
    query.awaitTermination()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))
    return time.monotonic() - started


def _deduplicated(arriving: DataFrame, _: Times) -> DataFrame:
    return arriving.dropDuplicatesWithinWatermark(["key"]).select("key", "value", "timestamp")


def _globally_deduplicated(arriving: DataFrame, times: Times) -> DataFrame:
    return _deduplicated(arriving.repartition("key"), times)


def _rekeyed(arriving: DataFrame, times: Times) -> DataFrame:
    return _tumbling(arriving.withColumn("key", sql.reverse("key")), times)


def _sessions(arriving: DataFrame, times: Times) -> DataFrame:
    """As in Kafka Streams, two records that are exactly a gap apart are one session (Spark 4.1, tried)."""
    return _counts(arriving, sql.session_window("event_time", _span(times["gap_ms"])))


def _tumbling(arriving: DataFrame, times: Times) -> DataFrame:
    return _counts(arriving, sql.window("event_time", _span(times["size_ms"])))


def _hopping(arriving: DataFrame, times: Times) -> DataFrame:
    return _counts(arriving, sql.window("event_time", _span(times["size_ms"]), _span(times["advance_ms"])))


def _counts(arriving: DataFrame, window: Column) -> DataFrame:
    counts = arriving.groupBy("key", window.alias("window")).agg(sql.count("*").alias("n"))
    first, last = (sql.unix_millis(f"window.{edge}") for edge in ("start", "end"))
    return counts.select("key", first.alias("first_ms"), last.alias("last_ms"), "n")


def _span(ms: int) -> str:
    return f"{ms} milliseconds"


PEERS = {
    "deduplicate": PeerQuery(_deduplicated, "append", "interval_ms"),
    "session": PeerQuery(_sessions, "append", "grace_ms"),
    "tumbling": PeerQuery(_tumbling, "update", "grace_ms"),
    "hopping": PeerQuery(_hopping, "update", "grace_ms"),
    "global": PeerQuery(_globally_deduplicated, "append", "interval_ms"),
    "rekeyed": PeerQuery(_rekeyed, "update", "grace_ms"),
}


if __name__ == "__main__":
    main()

"""The peer: Spark's own `dropDuplicatesWithinWatermark`, Structured Streaming, on the same deliveries and cores.

Reads a folder of Parquet files (one a partition and micro-batch, in order), writes Parquet, prints one JSON line with
the seconds from the query's start to its end. The JVM's start and a first tiny query are not counted.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sql


def main(source: Path, cores: int, interval_s: int, files_per_batch: int) -> None:
    spark = (
        SparkSession.builder.master(f"local[{cores}]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.memory", "6g")
        .config("spark.sql.shuffle.partitions", str(2 * cores))
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    spark.range(1000).groupBy("id").count().collect()
    with tempfile.TemporaryDirectory() as scratch:
        schema = spark.read.parquet(str(source)).schema
        arriving = spark.readStream.schema(schema).option("maxFilesPerTrigger", files_per_batch).parquet(str(source))
        started = time.monotonic()
        _run(_deduplicated(arriving, interval_s), Path(scratch))
        seconds = time.monotonic() - started
        rows = spark.read.parquet(f"{scratch}/out").count()
    print(json.dumps({"seconds": seconds, "rows_out": rows}))
    spark.stop()


def _deduplicated(arriving: DataFrame, interval_s: int) -> DataFrame:
    event_time = sql.timestamp_millis("timestamp")
    watermarked = arriving.withColumn("event_time", event_time).withWatermark("event_time", f"{interval_s} seconds")
    return watermarked.dropDuplicatesWithinWatermark(["key"])


def _run(result: DataFrame, scratch: Path) -> None:
    writer = result.writeStream.format("parquet").outputMode("append").trigger(availableNow=True)
    query = writer.option("checkpointLocation", f"{scratch}/checkpoint").start(f"{scratch}/out")
    query.awaitTermination()
    if query.exception() is not None:
        raise SystemExit(str(query.exception()))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *(int(argument) for argument in sys.argv[2:5]))

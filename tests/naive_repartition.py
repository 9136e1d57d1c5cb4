"""The oracle of jobs across partitions: which task gets which record, and in which order, one record at a time.

It shares no code with `service`. A source is a list of partitions, each a list of records in the order of arrival. The
order of a task is told in docs/semantics.md: `aligned_at`, the number of the input, the offset in it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tests import naive

Record = dict[str, Any]
STATEFUL = ("aggregate", "distinct", "suppress", "deduplicate", "deduplicate_by_key", "deduplicate_by_key_value")


class Row(NamedTuple):
    """A record on its way: how far the task had come that wrote it, and the record from outside that caused it, as
    whoever feeds names that.
    """

    aligned_at: int
    cause: Any
    record: Record


class Result(NamedTuple):
    """What came out of a task of the last stage, and the partition of the sink that it is for."""

    task: int
    partition: int
    cause: Any
    record: Record


Log = list[Row]  # one input of a task, in the order of its offsets


@dataclass
class Stage:
    """What one kind of task does: the operators at `places`, then records go to `targets` tasks, by key or by `by`."""

    places: list[int]
    targets: int
    by: str | None = None


def stages(operators: list[Record], partitions: int) -> list[Stage]:
    """The stages of a chain whose sources lie alike: it is cut where records have to meet that may lie apart."""
    found, is_apart = [Stage([], partitions)], False

    def cut(targets: int, by: str | None) -> None:
        found[-1].targets, found[-1].by = targets, by
        found.append(Stage([], targets))

    for place, operator in enumerate(operators):
        if operator["op"] == "repartition":
            cut(operator.get("partitions") or found[-1].targets, None)
            is_apart = False
            continue
        if operator["op"] in STATEFUL and found[-1].targets > 1:
            if operator["op"] == "deduplicate":
                cut(found[-1].targets, operator["id"])
                is_apart = True
            elif is_apart:
                cut(found[-1].targets, None)
                is_apart = False
        is_apart = is_apart or operator["op"] == "select_key"
        found[-1].places.append(place)
    return found


def merged(inputs: Sequence[Log]) -> Iterator[Row]:
    """All records of a task's inputs, lowest head first; a head is as far as its input has come, then its number."""
    unread, reached = [0] * len(inputs), [-1] * len(inputs)
    while True:
        heads = [
            (max(reached[number], rows[unread[number]].aligned_at), number)
            for number, rows in enumerate(inputs)
            if unread[number] < len(rows)
        ]
        if not heads:
            return
        time, number = min(heads)
        row = inputs[number][unread[number]]
        unread[number] += 1
        reached[number] = time
        yield row._replace(aligned_at=time)


def run_task(operators: list[Record], places: Sequence[int], rows: Iterator[Row] | Log) -> Log:
    """What comes out of a task that is given these records, each as far as the task had come at its cause."""
    machines = [naive.feeding(operators, place) for place in places]
    found, reached = [], -1
    for row in rows:
        reached = max(reached, row.aligned_at)
        flow = [row.record]
        for feed in machines:
            flow = [out for record in flow for out in feed(record)]
        found += [Row(reached, row.cause, record) for record in flow]
    return found


def spread(rows: Log, own: int, targets: int, by: str | None = None) -> list[Log]:
    """The rows for each target; what has no key stays with the number of its task."""
    found: list[Log] = [[] for _ in range(targets)]
    for row in rows:
        key = row.record["key"] if by is None else naive.EXPRESSIONS[by](row.record)
        found[own % targets if key is None else naive.partition_of(str(key), targets)].append(row)
    return found


def moved(stage: Stage, operators: list[Record], tasks: Sequence[Sequence[Log]]) -> list[list[Log]]:
    """By target its inputs, one a task of the stage before."""
    written = [run_task(operators, stage.places, merged(inputs)) for inputs in tasks]
    logs = [spread(rows, own, stage.targets, stage.by) for own, rows in enumerate(written)]
    return [[log[target] for log in logs] for target in range(stage.targets)]


def run(operators: list[Record], sources: Sequence[Sequence[Sequence[Any]]], sink_partitions: int) -> list[Result]:
    """What a job makes of sources that are all there when it starts, task after task of its last stage, each in order.

    `sources`: by source and partition the records as (cause, record), in the order of arrival.
    """
    partitions = max(len(source) for source in sources)
    must_meet = any(operator["op"] in STATEFUL for operator in operators)
    tasks: list[list[Log]] = [[] for _ in range(partitions)]
    for source in sources:
        logs = [
            [Row(record["timestamp"], cause, {"window": None, **record}) for cause, record in rows] for rows in source
        ]
        if must_meet and len(source) < partitions:
            inputs = moved(Stage([], partitions), operators, [[log] for log in logs])
        else:
            inputs = [[log] for log in logs]
        for task, own in zip(tasks, inputs, strict=False):
            task += own
    *before, last = stages(operators, partitions)
    for stage in before:
        tasks = moved(stage, operators, tasks)
    return [
        Result(own, partition, row.cause, row.record)
        for own, inputs in enumerate(tasks)
        for partition, rows in enumerate(spread(run_task(operators, last.places, merged(inputs)), own, sink_partitions))
        for row in rows
    ]

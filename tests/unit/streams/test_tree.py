"""A chain may be a tree: several operators get the rows of one, sinks hang on any; each branch is what it is alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.streams.operators.suppress import Suppress
from service.streams.topology.describe import describe
from service.streams.topology.graph import Sink, Topology
from tests.property.test_closing_steps import bursts
from tests.task import Record, Task, batch_of, causes, dropped, job, parts, shown

WINDOW = {"type": "tumbling", "size_ms": 10, "grace_ms": 0}
COUNT = {"n": {"fn": "count"}}
FRONT = {"op": "filter", "name": "front", "where": "value->>'id' is not null"}
CLOSING = {"op": "aggregate", "name": "closing", "window": WINDOW, "aggregates": COUNT, "emit": "on_window_close"}
RUNNING = {"op": "aggregate", "name": "running", "window": WINDOW, "aggregates": COUNT}
HOLD = {"op": "suppress", "name": "hold", "until": "time_limit", "time_limit_ms": 5}


def tree() -> Topology:
    """front → (closing → sink 0, running → (hold → sink 1, sink 2)), and sink 3 on front."""
    topology = job([FRONT, CLOSING, RUNNING, HOLD])
    (whole,) = topology.sub_topologies
    nodes = [replace(node, parent=parent) for node, parent in zip(whole.nodes, (None, 0, 0, 2), strict=True)]
    sinks = [Sink(f"out-{i}", None, parent) for i, parent in enumerate((1, 3, 2, 0))]
    return replace(topology, sub_topologies=[replace(whole, nodes=nodes, sinks=sinks)])


BRANCHES: list[list[Record]] = [[FRONT, CLOSING], [FRONT, RUNNING, HOLD], [FRONT, RUNNING], [FRONT]]


def results(task: Task, records: list[Record], to: int, sinks: int) -> tuple[list[list[Any]], list[Any]]:
    """What each sink got, with causes and headers, of records and then a flush; and what was dropped."""
    out: list[list[Any]] = [[] for _ in range(sinks)]
    gone = []
    for result in [*parts(task, batch_of(records)), task.advance(to), *task.drain()]:
        for sink in range(sinks):
            rows = result.outputs[sink][1]
            out[sink] += zip(shown(rows), causes(result, sink), rows.column("headers").to_pylist(), strict=True)
        gone += dropped(result)
    return out, gone


@given(records=bursts(), at_once=st.integers(1, 4), to=st.sampled_from([30, 5000]))
def test_each_branch_gives_what_it_gives_alone_however_little_may_be_done_at_once(
    records: list[Record], at_once: int, to: int
) -> None:
    task = Task(tree())
    for place in task.chain._places:
        if hasattr(place.operator, "at_once"):
            place.operator.at_once = 64 * at_once if isinstance(place.operator, Suppress) else at_once
    found, gone = results(task, records, to, len(BRANCHES))
    alone = [results(Task(job(branch)), records, to, 1) for branch in BRANCHES]
    assert found == [out for ((out,), _) in alone]
    assert set(gone) == {each for _, of_branch in alone for each in of_branch}


def test_a_tree_is_described_by_the_size_of_what_hangs_on_each_node() -> None:
    assert describe(tree()) == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: source-0 (topics: [in])\n"
        "      --> front\n"
        "    Processor: front (stores: [])\n"
        "      --> running, closing, sink-3\n"
        "      <-- source-0\n"
        "    Processor: running (stores: [t-running])\n"
        "      --> hold, sink-2\n"
        "      <-- front\n"
        "    Processor: closing (stores: [t-closing])\n"
        "      --> sink-0\n"
        "      <-- front\n"
        "    Processor: hold (stores: [t-hold])\n"
        "      --> sink-1\n"
        "      <-- running\n"
        "    Sink: sink-0 (topic: out-0)\n"
        "      <-- closing\n"
        "    Sink: sink-1 (topic: out-1)\n"
        "      <-- hold\n"
        "    Sink: sink-2 (topic: out-2)\n"
        "      <-- running\n"
        "    Sink: sink-3 (topic: out-3)\n"
        "      <-- front\n"
        "\n"
    )

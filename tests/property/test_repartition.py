"""A simulation of a job across partitions equals the oracle: who gets which record, and in which order."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from service.simulate.request import SimulateRequest
from service.simulate.run import simulate
from tests import naive, naive_repartition, strategies, web_log

Record = dict[str, Any]
SOURCES = ["in", "more", "most"]
BY_PATH = {"op": "deduplicate", "name": "once", "id": "value->>'path'", "interval_ms": 3_600_000}


def simulated(operators: list[Record], records: list[Record], sources: list[str]) -> list[Record]:
    """Key, value, timestamp, window and partition of what comes out, in the order of the records that caused it."""
    job = {"operators": operators, "source": sources}
    answer = simulate(SimulateRequest.model_validate({"job": job, "records": records}))
    return [{name: value for name, value in each.items() if name != "stream"} for each in answer["outputs"]]


def expected(operators: list[Record], records: list[Record], sources: list[str]) -> list[Record]:
    """The same, by the oracle."""
    partitions = 1 + max((record["partition"] for record in records), default=0)
    given: list[list[list[Any]]] = [[[] for _ in range(partitions)] for _ in sources]
    for cause, record in enumerate(records):
        fed = {name: record[name] for name in ("key", "value", "timestamp")}
        given[sources.index(record["stream"])][record["partition"]].append((cause, fed))
    width = naive_repartition.stages(operators, partitions)[-1].targets
    results = sorted(naive_repartition.run(operators, given, width), key=lambda result: result.cause)
    return [{**result.record, "partition": result.partition} for result in results]


def web_requests(partitions: int) -> list[Record]:
    """The web log, each request in the partition of its key."""
    return [
        {**record, "stream": "in", "partition": naive.partition_of(record["key"], partitions)}
        for record in web_log.requests()
    ]


def test_of_the_web_log_each_path_comes_out_once_an_hour_whatever_its_partition() -> None:
    records = web_requests(4)
    found = simulated([BY_PATH], records, ["in"])
    assert len(found) == 5_479
    assert found == expected([BY_PATH], records, ["in"])


def test_input_after_input_most_of_the_web_log_would_be_too_late_to_meet() -> None:
    """What the order is for: the control of the test above."""
    records = sorted(web_requests(4), key=lambda record: record["partition"])
    targets: list[list[Record]] = [[] for _ in range(4)]
    for record in records:
        targets[naive.partition_of(record["value"]["path"], 4)].append(record)
    found = [naive.deduplicate(each, naive.EXPRESSIONS[BY_PATH["id"]], BY_PATH["interval_ms"]) for each in targets]
    assert sum(map(len, found)) == 9_398


def test_the_web_log_in_three_sources_is_taken_in_the_order_of_the_oracle() -> None:
    """Three servers with a log each."""
    records = [{**record, "stream": SOURCES[i % 3]} for i, record in enumerate(web_requests(4)[:3_000])]
    found = simulated([BY_PATH], records, SOURCES)
    assert found
    assert found == expected([BY_PATH], records, SOURCES)


sessions_of_ids = st.builds(
    lambda sessions, counts: [
        {"op": "select_key", "key": "value->>'id'"},
        {**sessions, "emit": "on_update"},
        {"op": "suppress", "name": "final", "until": "window_closes"},
        {"op": "select_key", "key": "(value->>'n')::bigint"},
        counts,
    ],
    strategies.aggregations("sessions", ("session",)).map(
        lambda operator: {**operator, "aggregates": {"n": {"fn": "count"}}}
    ),
    strategies.aggregations("counts", ("tumbling",)),
)


@st.composite
def mixtures(draw: st.DrawFn) -> list[Record]:
    """Operators with and without state, other keys and repartitions between them, then perhaps an aggregate."""
    wide = st.fixed_dictionaries({"op": st.just("repartition")}, optional={"partitions": st.integers(1, 5)})
    keeping = st.one_of(strategies.deduplications(), strategies.distincts())
    parts = draw(st.lists(st.one_of(strategies.stateless, wide, keeping), max_size=4))
    last = draw(st.lists(st.one_of(strategies.aggregations(), strategies.deduplications()), max_size=1))
    return [{**part, "name": f"part_{i}"} for i, part in enumerate([*parts, *last])]


chains = st.one_of(strategies.deduplications().map(lambda operator: [operator]), sessions_of_ids, mixtures())


@st.composite
def arrivals(draw: st.DrawFn, sources: list[str], most_partitions: int = 4) -> list[Record]:
    """Records over the partitions of sources: few keys and ids, some null, times nearly in order or in none."""
    partitions = draw(st.integers(1, most_partitions))
    keys = st.sampled_from([None, *draw(st.lists(strategies.texts, min_size=1, max_size=4, unique=True))])
    ids = st.sampled_from([None, "", *"abc"])
    value = st.fixed_dictionaries({"id": ids, "v": st.none() | st.integers(-5, 5)})
    back = draw(st.sampled_from([0, 3, 50]))
    steps = st.tuples(
        st.sampled_from(sources),
        st.integers(0, partitions - 1),
        keys,
        st.none() | value,
        st.sampled_from([0, 0, 1, 2, 9]),
        st.integers(0, back),
    )
    found, now = [], back
    for source, partition, key, given_value, step, late in draw(st.lists(steps, max_size=40)):
        now += step
        fed = {"key": key, "value": given_value, "timestamp": now - late}
        found.append({**fed, "stream": source, "partition": partition})
    return found


@given(st.data(), chains, st.integers(1, 3).map(lambda count: SOURCES[:count]))
def test_a_simulation_across_partitions_equals_the_oracle(
    data: st.DataObject, operators: list[Record], sources: list[str]
) -> None:
    records = data.draw(arrivals(sources))
    assert simulated(operators, records, sources) == expected(operators, records, sources)

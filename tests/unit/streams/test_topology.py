"""Compiling a job: nodes, stores, what is not possible yet, and the describe() text."""

import json

import pytest

from service.streams.errors import InvalidSpec
from service.streams.topology import graph
from service.streams.topology.describe import describe
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
GLOBAL = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 10}
REKEY = {"op": "select_key", "key": "value->>'id'"}


def compiled(*operators, partitions=4, **fields):
    body = {"name": "visits", "source": "clicks", "sink": "out", "operators": list(operators), **fields}
    return graph.compile(JobSpec.parse(body), {"clicks": partitions})


def refused(*operators, partitions=4, **fields):
    with pytest.raises(InvalidSpec) as caught:
        compiled(*operators, partitions=partitions, **fields)
    return [(problem.pointer, problem.detail) for problem in caught.value.errors]


def test_a_store_is_named_after_job_and_operator_and_its_changelog_after_it():
    (store,) = compiled(ONCE).stores()
    assert (store.name, store.changelog) == ("visits-once", "visits-once-changelog")
    assert (store.operator, store.type, store.kind, store.interval_ms) == ("once", "key_value", "deduplicate", 10)


def test_a_topology_survives_json():
    topology = compiled({"op": "filter", "where": "key IS NOT NULL"}, ONCE, sink=[{"stream": "a", "where": "true"}])
    assert Topology.from_json(json.loads(json.dumps(topology.to_json()))) == topology


def test_nodes_without_a_name_are_named_after_their_place():
    (sub_topology,) = compiled({"op": "filter", "where": "true"}, ONCE).sub_topologies
    assert [node.name for node in sub_topology.nodes] == ["filter-0", "once"]
    assert (sub_topology.id, sub_topology.partitions) == (0, 4)


def test_an_unknown_source_is_pointed_at():
    body = {"name": "visits", "source": "nope"}
    with pytest.raises(InvalidSpec) as caught:
        graph.compile(JobSpec.parse(body), {"clicks": 1})
    assert [problem.pointer for problem in caught.value.errors] == ["/source"]


def test_a_stateful_operator_after_select_key_needs_repartitioning():
    ((pointer, detail),) = refused({"op": "filter", "where": "true"}, REKEY, ONCE)
    assert pointer == "/operators/2"
    assert "needs repartitioning, which is not available yet" in detail


def test_the_global_deduplicate_needs_repartitioning():
    assert [pointer for pointer, _ in refused(GLOBAL)] == ["/operators/0"]


def test_one_partition_needs_no_repartitioning():
    assert len(compiled(REKEY, ONCE, {**GLOBAL, "name": "twice"}, partitions=1).stores()) == 2


def test_several_sources_are_not_available_yet():
    body = JobSpec.parse({"name": "visits", "source": ["a", "b"]})
    with pytest.raises(InvalidSpec) as caught:
        graph.compile(body, {"a": 1, "b": 1})
    assert [problem.pointer for problem in caught.value.errors] == ["/source"]


def test_a_start_offset_for_a_partition_that_is_not_there_is_pointed_at():
    assert [pointer for pointer, _ in refused(start={"offsets": {"3": 1, "4": 1}})] == ["/start/offsets/4"]


def test_describe_has_the_layout_of_kafka_streams():
    topology = compiled({"op": "filter", "where": "true"}, ONCE, sink=[{"stream": "a"}, {"stream": "b"}])
    assert describe(topology) == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: source-0 (topics: [clicks])\n"
        "      --> filter-0\n"
        "    Processor: filter-0 (stores: [])\n"
        "      --> once\n"
        "      <-- source-0\n"
        "    Processor: once (stores: [visits-once])\n"
        "      --> sink-0, sink-1\n"
        "      <-- filter-0\n"
        "    Sink: sink-0 (topic: a)\n"
        "      <-- once\n"
        "    Sink: sink-1 (topic: b)\n"
        "      <-- once\n"
        "\n"
    )


def test_a_job_without_a_sink_ends_in_none():
    assert "    Processor: once (stores: [visits-once])\n      --> none\n" in describe(compiled(ONCE, sink=None))


def test_keys_apart_are_refused_unless_the_job_trusts_the_partitions() -> None:
    operator = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 1}
    body = {"name": "visits", "source": "clicks", "operators": [operator], "sink": "out"}
    with pytest.raises(InvalidSpec) as refused:
        graph.compile(JobSpec.parse(body), {"clicks": 2}, custom={"clicks"})
    assert [problem.pointer for problem in refused.value.errors] == ["/trust_partitions"]
    trusting = JobSpec.parse(body | {"trust_partitions": True})
    assert graph.compile(trusting, {"clicks": 2}, custom={"clicks"}).sub_topologies
    assert graph.compile(JobSpec.parse(body), {"clicks": 1}, custom={"clicks"}).sub_topologies

"""Compiling a job: nodes, stores, what is not possible yet, and the describe() text."""

import json

import pytest

from service.streams.errors import InvalidSpec
from service.streams.topology import graph
from service.streams.topology.describe import describe
from service.streams.topology.graph import Repartition, Topology
from service.streams.topology.spec import JobSpec

ONCE = {"op": "deduplicate_by_key", "name": "once", "interval_ms": 10}
GLOBAL = {"op": "deduplicate", "name": "once", "id": "value->>'id'", "interval_ms": 10}
FILTER = {"op": "filter", "where": "true"}
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


def test_a_stateful_operator_behind_select_key_gets_its_records_by_their_new_keys():
    first, second = compiled(REKEY, FILTER, ONCE, FILTER).sub_topologies
    assert ([node.op for node in first.nodes], first.sinks) == (["select_key", "filter"], [])
    (by_key,) = first.repartitions
    assert (by_key.stream, by_key.targets, by_key.by, by_key.parent) == ("visits-once-repartition", 4, None, 1)
    assert (second.sources, second.upstreams, second.reads_user_streams) == (["visits-once-repartition"], [0], False)
    assert [(node.name, node.parent) for node in second.nodes] == [("once", None), ("filter-3", 0)]
    assert [(sink.stream, sink.parent) for sink in second.sinks] == [("out", 1)]


def test_the_global_deduplicate_gets_its_records_by_id_and_leaves_equal_keys_apart():
    count = {"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}
    topology = compiled(GLOBAL, count)
    assert [each.repartitions for each in topology.sub_topologies] == [
        [Repartition("visits-once-repartition", "once", 4, "value->>'id'")],
        [Repartition("visits-n-repartition", "n", 4, None, 0)],
        [],
    ]
    assert topology.dropping() == ["once-repartition", "once", "n"]
    assert {"visits-once-repartition", "visits-n-repartition"} < set(topology.internal_streams())


def test_repartition_says_how_many_tasks_go_on():
    operators = [{"op": "repartition", "name": "wide", "partitions": 8}, ONCE]
    first, second = compiled(*operators).sub_topologies
    assert ([each.targets for each in first.repartitions], second.partitions) == ([8], 8)
    assert [each.partitions for each in compiled({"op": "repartition", "name": "same"}).sub_topologies] == [4, 4]


def test_a_sink_is_no_repartition_stream_of_the_job():
    ((pointer, detail),) = refused(REKEY, ONCE, sink="visits-once-repartition")
    assert (pointer, detail) == ("/sink", "the sink is the job's own repartition stream")


def test_one_partition_needs_no_repartitioning():
    assert len(compiled(REKEY, ONCE, {**GLOBAL, "name": "twice"}, partitions=1).stores()) == 2


def test_of_several_sources_those_with_other_partition_counts_are_repartitioned():
    spec = JobSpec.parse({"name": "visits", "source": ["a", "b", "c"], "operators": [FILTER, ONCE]})
    topology = graph.compile(spec, {"a": 2, "b": 4, "c": 1})
    first, second, last = topology.sub_topologies
    assert [(each.sources, each.partitions, each.nodes) for each in (first, second)] == [(["a"], 2, []), (["c"], 1, [])]
    assert last.sources == ["visits-a-repartition", "b", "visits-c-repartition"]
    assert (last.upstreams, last.partitions, last.reads_user_streams) == ([0, 1], 4, True)
    assert topology.user_sources() == ["a", "c", "b"]


def test_without_state_several_sources_are_read_as_they_are():
    spec = JobSpec.parse({"name": "visits", "source": ["a", "b"], "operators": [FILTER]})
    (only,) = graph.compile(spec, {"a": 2, "b": 4}).sub_topologies
    assert (only.sources, only.partitions) == (["a", "b"], 4)


def test_a_source_has_no_operators_name():
    body = {"name": "visits", "source": ["a", "once"], "operators": [ONCE]}
    with pytest.raises(InvalidSpec) as caught:
        graph.compile(JobSpec.parse(body), {"a": 1, "once": 2})
    assert [problem.pointer for problem in caught.value.errors] == ["/source/1"]


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


def test_keys_apart_are_brought_together_unless_the_job_trusts_the_partitions() -> None:
    spec = JobSpec.parse({"name": "visits", "source": "clicks", "operators": [ONCE], "sink": "out"})
    trusting = spec.model_copy(update={"trust_partitions": True})
    found = [
        len(graph.compile(each, {"clicks": count}, custom={"clicks"}).sub_topologies)
        for each, count in ((spec, 2), (trusting, 2), (spec, 1))
    ]
    assert found == [2, 1, 1]


def test_describe_names_repartition_streams_as_sinks_and_sources():
    assert describe(compiled(REKEY, ONCE)) == (
        "Topologies:\n"
        "   Sub-topology: 0\n"
        "    Source: source-0 (topics: [clicks])\n"
        "      --> select_key-0\n"
        "    Processor: select_key-0 (stores: [])\n"
        "      --> once-repartition-sink\n"
        "      <-- source-0\n"
        "    Sink: once-repartition-sink (topic: visits-once-repartition)\n"
        "      <-- select_key-0\n"
        "\n"
        "   Sub-topology: 1\n"
        "    Source: once-repartition-source (topics: [visits-once-repartition])\n"
        "      --> once\n"
        "    Processor: once (stores: [visits-once])\n"
        "      --> sink-0\n"
        "      <-- once-repartition-source\n"
        "    Sink: sink-0 (topic: out)\n"
        "      <-- once\n"
        "\n"
    )


TREE = [FILTER, ONCE, {**REKEY, "after": "filter-0"}, {**ONCE, "name": "other"}, {**FILTER, "after": "source"}]
LEAVES = [{"stream": "a", "after": "once"}, {"stream": "b", "after": "other", "where": "true"}, {"stream": "c"}]


def test_one_operator_may_have_several_behind_it():
    first, second = compiled(*TREE, sink=LEAVES).sub_topologies
    assert [(node.name, node.parent) for node in first.nodes] == [
        ("filter-0", None),
        ("once", 0),
        ("select_key-2", 0),
        ("filter-4", None),
    ]
    assert [(each.stream, each.parent) for each in first.repartitions] == [("visits-other-repartition", 2)]
    assert [(sink.stream, sink.parent, sink.number) for sink in first.sinks] == [("a", 1, 0), ("c", 3, 2)]
    assert [(sink.stream, sink.parent, sink.number) for sink in second.sinks] == [("b", 0, 1)]
    assert compiled(*TREE, sink=LEAVES).dropping() == [*(node.name for node in first.nodes), "other", "sink-1"]


def test_each_branch_knows_what_those_before_it_make_of_its_records():
    count = {"op": "aggregate", "name": "n", "aggregates": {"n": {"fn": "count"}}}
    (only,) = compiled(
        count, FILTER, {**FILTER, "after": "source"}, sink=[{"stream": "a", "after": "n"}]
    ).sub_topologies
    assert [node.upstream.is_table for node in only.nodes] == [False, True, False]
    assert [sink.upstream.is_table for sink in only.sinks] == [True]


def test_what_comes_after_something_that_is_not_before_it_is_pointed_at():
    found = problems_of([{**FILTER, "after": "once"}, ONCE], sink=[{"stream": "a", "after": "nope"}])
    assert found == ["/operators/0/after", "/sink/0/after"]


def test_a_job_shows_after_where_it_was_said_alone():
    body = {"name": "x", "source": "in", "operators": [FILTER, {**FILTER, "after": "source"}], "sink": LEAVES[2:]}
    shown = JobSpec.parse(body).to_json()
    assert [each.get("after", "nothing") for each in (*shown["operators"], *shown["sink"])] == [
        "nothing",
        "source",
        "nothing",
    ]


def problems_of(operators, **fields):
    with pytest.raises(InvalidSpec) as caught:
        compiled(*operators, **fields)
    return [problem.pointer for problem in caught.value.errors]

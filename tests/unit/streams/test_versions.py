"""What becomes of a job's stores and outputs where its specification changes: every row of the table of verdicts."""

import json

import pytest

from service.streams.records import Handover
from service.streams.topology import graph
from service.streams.topology.spec import JobSpec
from service.streams.topology.versions import Version, compare

MINUTE = 60_000
REKEY = {"op": "select_key", "key": "value->>'id'"}
FILTER = {"op": "filter", "where": "key IS NOT NULL"}
MAP = {"op": "map_values", "select": {"n": "value->>'n'"}}


def once(**fields):
    return {"op": "deduplicate_by_key", "name": "once", "interval_ms": MINUTE, **fields}


def by_id(**fields):
    return {"op": "deduplicate_by_key_value", "name": "once", "id": "value->>'id'", "interval_ms": MINUTE, **fields}


def counted(window=None, *, name="n", aggregates=None, **fields):
    aggregates = {"n": {"fn": "count"}, "s": {"fn": "sum", "of": "timestamp"}} if aggregates is None else aggregates
    return {"op": "aggregate", "name": name, "window": window, "aggregates": aggregates, **fields}


def tumbling(**fields):
    return {"type": "tumbling", "size_ms": MINUTE, "grace_ms": 10, **fields}


def session(**fields):
    return {"type": "session", "gap_ms": MINUTE, "grace_ms": 10, **fields}


def suppressed(**fields):
    return {"op": "suppress", "name": "final", "until": "window_closes", "buffer": {}, **fields}


def version(*operators, partitions=1, **fields):
    body = {"name": "visits", "source": "clicks", "sink": "out", "operators": list(operators), **fields}
    spec = JobSpec.parse(body)
    return Version(spec, graph.compile(spec, dict.fromkeys(spec.sources, partitions)))


def change(before, after, **how):
    return compare(version(*before), version(*after), **how)


def verdicts(found):
    return {each.operator: each.verdict for each in found.operators}


def problems(found):
    return [(each.pointer, each.detail) for each in found.problems]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (once(), once(interval_ms=1)),
        (by_id(), by_id(interval_ms=MINUTE * 2)),
        (counted(tumbling()), counted(tumbling(grace_ms=0))),
        (counted(tumbling()), counted(tumbling(retention_ms=5))),
        (counted(session()), counted(session(gap_ms=5))),
        (counted(tumbling()), counted(tumbling(), updates="last_per_batch")),
        (counted(tumbling()), counted(tumbling(), aggregates={"n": {"fn": "count"}})),
        (counted(), counted(aggregates={"s": {"fn": "sum", "of": "timestamp"}, "n": {"fn": "count"}})),
        (counted(tumbling()), counted(tumbling(), aggregates={"n": {"fn": "max", "of": "timestamp"}})),
        (
            {"op": "distinct", "name": "n", "window": session()},
            {"op": "distinct", "name": "n", "window": session(gap_ms=1, grace_ms=0)},
        ),
    ],
)
def test_what_stored_state_bears_keeps_it(before, after):
    found = change([before], [after])
    (operator,) = found.operators
    assert (operator.verdict, operator.former, found.problems) == ("keeps", operator.operator, [])
    assert found.inherited == {operator.operator: operator.operator}
    assert " -> " in operator.detail or "order" in operator.detail


@pytest.mark.parametrize(
    ("before", "after", "where"),
    [
        (by_id(), by_id(id="value->>'other'"), "/operators/0/id"),
        (once(), by_id(), "/operators/0/op"),
        (counted(tumbling()), counted(tumbling(size_ms=5)), "/operators/0/window/size_ms"),
        (counted(tumbling()), counted(session()), "/operators/0/window/type"),
        (counted(tumbling()), counted(), "/operators/0/window"),
        (counted(tumbling()), counted(tumbling(), emit="on_window_close"), "/operators/0/emit"),
        (counted(), counted(aggregates={"n": {"fn": "count"}, "m": {"fn": "count"}}), "/operators/0/aggregates/m"),
        (
            counted({"type": "hopping", "size_ms": 10, "advance_ms": 5}),
            counted({"type": "hopping", "size_ms": 10, "advance_ms": 2}),
            "/operators/0/window/advance_ms",
        ),
        (
            counted({"type": "sliding", "time_difference_ms": 10}),
            counted({"type": "sliding", "time_difference_ms": 5}),
            "/operators/0/window/time_difference_ms",
        ),
    ],
)
def test_what_would_change_the_meaning_of_state_is_refused_unless_it_begins_anew(before, after, where):
    found = change([before], [after])
    name = after["name"]
    assert [at for at, _ in problems(found)] == [where]
    assert f'restart: ["{name}"]' in problems(found)[0][1]
    assert verdicts(found) == {name: "refused"}
    anew = change([before], [after], restart=[name])
    assert (verdicts(anew), anew.problems, anew.inherited) == ({name: "restarts"}, [], {})


def test_an_equal_specification_changes_nothing():
    chain = [FILTER, once(), counted(tumbling()), suppressed()]
    found = change(chain, chain)
    assert set(verdicts(found).values()) == {"unchanged"}
    assert [(each.stream, each.verdict) for each in found.sinks] == [("out", "unchanged")]


def test_another_condition_keeps_the_state_behind_it_and_names_what_gets_other_records():
    found = change([FILTER, once(), MAP], [{**FILTER, "where": "key = 'a'"}, once(), MAP])
    assert verdicts(found) == {"filter-0": "keeps", "once": "keeps", "map_values-2": "unchanged"}
    by_name = {each.operator: each for each in found.operators}
    assert by_name["once"].detail == "what reaches it is made by the new version from here on"
    assert [(each.verdict, each.stream) for each in found.sinks] == [("keeps", "out")]


def test_a_named_condition_says_what_differs():
    named = {**FILTER, "name": "known"}
    (first, _) = change([named, once()], [{**named, "where": "key = 'a'"}, once()]).operators
    assert (first.verdict, first.detail) == ("keeps", 'where: "key IS NOT NULL" -> "key = \'a\'"')


def test_a_stateless_operator_may_come_and_go():
    assert verdicts(change([once()], [MAP, once()])) == {"map_values-0": "keeps", "once": "keeps"}
    found = change([MAP, once()], [once()])
    assert verdicts(found) == {"once": "keeps", "map_values-0": "removed"}


def test_state_under_other_keys_is_refused():
    (problem,) = problems(change([once()], [REKEY, once()]))
    assert problem[0] == "/operators/1"
    assert "other keys" in problem[1]
    assert verdicts(change([once()], [REKEY, once()], restart=["once"])) == {
        "select_key-0": "keeps",
        "once": "restarts",
    }
    other = {**REKEY, "key": "value->>'other'"}
    assert [at for at, _ in problems(change([REKEY, once()], [other, once()]))] == ["/operators/1"]


def test_a_table_is_no_stream_of_records():
    def then(*before):
        return [*before, counted(name="behind")]

    (problem,) = problems(change(then(), then(counted(tumbling(), name="first"))))
    assert problem[0] == "/operators/1"
    assert "table" in problem[1]
    (problem,) = problems(
        change(then(counted(tumbling(), name="a")), then(counted(tumbling(size_ms=5), name="a")), restart=["a"])
    )
    assert problem[0] == "/operators/1"
    assert "windows" in problem[1]


def test_another_grace_in_front_keeps_what_waits_for_windows_to_close():
    found = change([counted(tumbling()), suppressed()], [counted(tumbling(grace_ms=99)), suppressed()])
    assert verdicts(found) == {"n": "keeps", "final": "keeps"}
    assert found.conditions == []


def test_a_buffer_that_would_go_must_be_empty():
    chain = [counted(tumbling()), suppressed()]
    ((store, condition),) = change(chain, chain[:1]).conditions
    assert (store, condition.max_records) == ("visits-final", 0)
    assert verdicts(change(chain, chain[:1]))["final"] == "removed"
    limited = suppressed(until="time_limit", time_limit_ms=5)
    ((store, condition),) = change(chain, [chain[0], limited]).conditions
    assert (store, condition.max_records) == ("visits-final", 0)


def test_a_buffer_that_shuts_down_must_hold_no_more_than_its_new_bound():
    bounded = suppressed(buffer={"max_records": 5, "when_full": "shut_down"})
    ((store, condition),) = change([counted(tumbling()), suppressed()], [counted(tumbling()), bounded]).conditions
    assert (store, condition.max_records, condition.max_bytes) == ("visits-final", 5, None)
    spilling = suppressed(buffer={"max_records": 5, "when_full": "spill_to_disk"})
    assert change([counted(tumbling()), suppressed()], [counted(tumbling()), spilling]).conditions == []


def test_an_operator_that_comes_begins_empty_and_one_that_goes_leaves_its_store():
    found = change([once()], [once(), counted(tumbling())])
    assert verdicts(found) == {"once": "unchanged", "n": "empty"}
    found = change([once(), counted(tumbling())], [once()])
    (gone,) = [each for each in found.operators if each.operator == "n"]
    assert (gone.verdict, gone.store, found.inherited) == ("removed", "visits-n", {"once": "once"})


@pytest.mark.parametrize(
    ("before", "after", "how", "unseen"),
    [
        ([counted(tumbling())], [counted(tumbling()), MAP, suppressed()], {}, {"final": "visits-n"}),
        (
            [counted(tumbling())],
            [counted(tumbling(), name="m"), suppressed()],
            {"renames": {"n": "m"}},
            {"final": "visits-n"},
        ),
        (
            [counted(session()), suppressed()],
            [counted(session()), suppressed()],
            {"restart": ["final"]},
            {"final": "visits-n"},
        ),
        ([counted(tumbling())], [counted(tumbling()), suppressed()], {"restart": ["n"]}, {}),
        ([counted(tumbling())], [counted(tumbling()), suppressed(until="time_limit", time_limit_ms=5)], {}, {}),
        ([counted()], [counted(), suppressed(until="time_limit", time_limit_ms=5)], {}, {}),
        ([once()], [once(), counted(tumbling()), suppressed()], {}, {}),
        ([counted(tumbling()), suppressed()], [counted(tumbling()), suppressed()], {}, {}),
    ],
)
def test_what_waits_for_windows_to_close_has_not_seen_those_that_are_open(before, after, how, unseen):
    found = change(before, after, **how)
    assert (found.unseen, found.problems) == (unseen, [])


def test_a_store_goes_on_under_another_name():
    renamed = {**once(), "name": "first"}
    found = change([once()], [renamed], renames={"once": "first"})
    (operator,) = found.operators
    assert (operator.verdict, operator.former, operator.store) == ("keeps", "once", "visits-first")
    assert found.inherited == {"first": "once"}
    assert verdicts(change([once()], [renamed])) == {"first": "empty", "once": "removed"}


def test_two_operators_may_swap_their_names():
    before = [once(), counted(tumbling(), name="other")]
    after = [{**once(), "name": "other"}, counted(tumbling(), name="once")]
    found = change(before, after, renames={"once": "other", "other": "once"})
    assert (found.problems, found.inherited) == ([], {"other": "once", "once": "other"})


@pytest.mark.parametrize(
    ("how", "where"),
    [
        ({"renames": {"nope": "once"}}, "/renames/nope"),
        ({"renames": {"once": "nope"}}, "/renames/once"),
        ({"restart": ["nope"]}, "/restart"),
    ],
)
def test_names_that_name_nothing_are_pointed_at(how, where):
    assert [at for at, _ in problems(change([once()], [once()], **how))] == [where]


def test_a_name_is_not_taken_from_an_operator_that_keeps_it():
    before = [once(), counted(tumbling(), name="other")]
    found = change(before, before, renames={"once": "other"})
    assert [at for at, _ in problems(found)] == ["/renames/once"]


def test_a_job_keeps_its_name():
    found = compare(version(once()), version(once(), name="other"))
    assert [at for at, _ in problems(found)] == ["/name"]


def sources(found):
    return {each.stream: each.verdict for each in found.sources}


def test_sources_come_and_go():
    both = version(once(), source=["clicks", "views"])
    found = compare(version(once()), version(once(), source="elsewhere"))
    assert (problems(found), sources(found)) == ([], {"elsewhere": "added", "clicks": "removed"})
    found = compare(both, version(once()))
    assert (problems(found), sources(found)) == ([], {"clicks": "unchanged", "views": "removed"})
    assert verdicts(found) == {"once": "keeps"}


def test_the_order_of_sources_says_nothing():
    both, turned = (version(once(), source=source) for source in (["clicks", "views"], ["views", "clicks"]))
    found = compare(both, turned)
    assert (problems(found), verdicts(found)) == ([], {"once": "unchanged"})


def test_one_without_which_tasks_would_read_otherwise_stays():
    spec = version(once(), source=["clicks", "views"]).spec
    both = Version(spec, graph.compile(spec, {"clicks": 2, "views": 4}))
    ((at, detail),) = problems(compare(both, version(once(), source="views", partitions=4)))
    assert at == "/source"
    assert "without 'clicks'" in detail


def test_a_source_is_added_behind_those_that_are_there():
    found = compare(version(once(), partitions=2), version(once(), source=["clicks", "views"], partitions=2))
    assert problems(found) == []
    ((verdict, detail),) = [(each.verdict, each.detail) for each in found.operators]
    assert (verdict, detail) == ("keeps", "what reaches it is made by the new version from here on")


@pytest.mark.parametrize("operators", [[once()], []])
def test_one_whose_partitions_lie_otherwise_is_refused(operators):
    spec = version(*operators, source=["clicks", "views"]).spec
    added = Version(spec, graph.compile(spec, {"clicks": 2, "views": 4}))
    ((at, detail),) = problems(compare(version(*operators, partitions=2), added))
    assert at == "/source/1"
    assert "`repartition` it" in detail


def spread(count=4, **fields):
    return {"op": "repartition", "name": "spread", "partitions": count, **fields}


FINAL_COUNT = [counted(tumbling()), suppressed()]


@pytest.mark.parametrize(
    ("before", "after", "restart", "tasks"),
    [
        ([once()], [REKEY, once()], ["once"], {0: 0}),
        ([REKEY, once()], [once()], ["once"], {0: 0}),
        ([once(), *FINAL_COUNT], [REKEY, once(), *FINAL_COUNT], ["once", "n", "final"], {0: 0}),
        ([once(), *FINAL_COUNT], [once(), REKEY, *FINAL_COUNT], ["n", "final"], {0: 0}),
        ([once(), REKEY, *FINAL_COUNT], [once(), *FINAL_COUNT], ["n", "final"], {0: 0}),
        ([spread(4), once()], [spread(2), once()], ["once"], {0: 0}),
        ([once(), spread(4), *FINAL_COUNT], [once(), spread(3), *FINAL_COUNT], ["n", "final"], {0: 0}),
        (
            [REKEY, once()],
            [REKEY, {"op": "deduplicate", "name": "by_id", "id": "key", "interval_ms": 1}, once()],
            ["once"],
            {0: 0},
        ),
    ],
)
def test_other_ways_from_task_to_task_take_a_restart_of_all_stores_behind_them(before, after, restart, tasks):
    old, new = version(*before, partitions=4), version(*after, partitions=4)
    found = compare(old, new)
    assert problems(found)
    for at, detail in problems(found):
        assert at.startswith("/operators/")
        assert f"`restart: {json.dumps(restart)}` begins" in detail
    assert {name for name, verdict in verdicts(found).items() if verdict == "refused"} == set(restart)
    anew = compare(old, new, restart=restart)
    assert (problems(anew), anew.tasks) == ([], tasks)
    assert {name for name, verdict in verdicts(anew).items() if verdict == "restarts"} == set(restart)
    assert set(anew.inherited) == {"once", "n", "final"} & verdicts(found).keys() - set(restart)
    for missing in restart if len(restart) > 1 else []:
        few = compare(old, new, restart=[name for name in restart if name != missing])
        assert verdicts(few)[missing] == "refused"
        assert all(f"`restart: {json.dumps(restart)}` begins it empty" in detail for _, detail in problems(few))


def test_tasks_stay_where_a_repartition_is_called_otherwise():
    found = compare(
        version(spread(), once(), partitions=2), version(FILTER, spread(name="moved"), once(), partitions=2)
    )
    assert (problems(found), found.tasks, verdicts(found)["once"]) == ([], {0: 0, 1: 1}, "keeps")


def test_tasks_of_another_branch_stay():
    branches = [{**REKEY, "after": "source"}, once(), {**REKEY, "after": "source", "key": "value->>'other'"}]
    both = version(*branches, once(name="other"), partitions=2)
    alone = version(branches[2], once(name="other"), partitions=2)
    found = compare(both, alone)
    assert (problems(found), found.tasks) == ([], {0: 0, 1: 2})
    by_name = {each.operator: each for each in found.operators}
    assert (by_name["other"].verdict, by_name["once"].detail) == ("unchanged", "its store goes with its tasks")


def test_a_source_stays_with_the_tasks_that_read_it():
    def over(*operators):
        spec = version(*operators, source=["clicks", "views"]).spec
        return Version(spec, graph.compile(spec, {"clicks": 2, "views": 4}))

    ((at, detail),) = problems(compare(over(FILTER), over(once())))
    assert at == "/operators"
    assert "make another job of it" in detail


def test_another_repartition_is_told():
    found = compare(version(spread(4), FILTER, partitions=2), version(spread(2), FILTER, partitions=2))
    assert (problems(found), verdicts(found)) == ([], {"spread": "keeps", "filter-1": "unchanged"})
    found = compare(version(spread(4), FILTER, partitions=2), version(spread(4), partitions=2))
    assert verdicts(found)["spread"] == "unchanged"


def test_an_operator_behind_a_cut_is_renamed_with_the_stream_between_the_tasks():
    chain = [REKEY, once(), counted(tumbling())]
    after = [REKEY, {**once(), "name": "first"}, counted(tumbling())]
    before, renamed = version(*chain, partitions=4), version(*after, partitions=4)
    found = compare(before, renamed, renames={"once": "first"})
    assert (found.problems, verdicts(found)["first"]) == ([], "keeps")
    assert compare(before, version(REKEY, FILTER, once(), counted(tumbling()), partitions=4)).problems == []


def test_a_sink_may_come_and_go():
    both = [{"stream": "out"}, {"stream": "alerts", "where": "key = 'a'"}]
    found = compare(version(once()), version(once(), sink=both))
    assert {each.stream: each.verdict for each in found.sinks} == {"out": "unchanged", "alerts": "added"}
    found = compare(version(once(), sink=both), version(once()))
    assert {each.stream: each.verdict for each in found.sinks} == {"out": "unchanged", "alerts": "removed"}


def test_what_a_version_leaves_to_the_next():
    left = version(once(), counted(tumbling(retention_ms=5)), suppressed()).handovers()
    assert left == {
        "visits-once": Handover(kept_ms=MINUTE),
        "visits-n": Handover(10, MINUTE + 10 + 5),
        "visits-final": Handover(),
    }
    assert version(counted(session())).handovers()["visits-n"].delay_ms == MINUTE + 10


def test_other_functions_are_another_layout_of_the_store_as_often_as_it_bears():
    one, two = {"n": {"fn": "count"}}, {"n": {"fn": "count"}, "s": {"fn": "sum", "of": "timestamp"}}
    chains = [[counted(tumbling(), aggregates=each)] for each in (one, two)]
    found = change(*chains)
    assert [(each["id"], list(each["aggregates"])) for each in found.topology.stores()[0].layouts] == [
        (1, ["n"]),
        (2, ["n", "s"]),
    ]
    now = Version(version(*chains[1]).spec, found.topology)
    assert compare(now, version(*chains[1])).topology == found.topology
    for number in range(3, 257):
        after = version(*chains[(number + 1) % 2])
        found = compare(now, after)
        now = Version(after.spec, found.topology)
    assert [at for at, _ in problems(found)] == ["/operators/0/aggregates"]

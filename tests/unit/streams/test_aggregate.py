"""One edge per test: windows that take, close, merge and come out (semantics.md; the tables of the long form)."""

from dataclasses import replace

import pyarrow as pa
import pytest

from service.streams.inputs import Origins
from service.streams.operators import grouping
from tests.task import INPUT, Task, batch_of, causes, held, job, outputs, parts, run_all

COUNT = {"n": {"fn": "count"}}
JOINED = {"c": {"fn": "collect", "of": "value->>'id'"}}


def task(window, aggregates=COUNT, **fields):
    return Task(job([{"op": "aggregate", "name": "agg", "window": window, "aggregates": aggregates, **fields}]))


def tumbling(size_ms=10, **fields):
    return {"type": "tumbling", "size_ms": size_ms, **fields}


def hopping(size_ms, advance_ms, **fields):
    return {"type": "hopping", "size_ms": size_ms, "advance_ms": advance_ms, **fields}


def session(gap_ms=5, **fields):
    return {"type": "session", "gap_ms": gap_ms, **fields}


def sliding(difference_ms=5, **fields):
    return {"type": "sliding", "time_difference_ms": difference_ms, **fields}


def record(text):
    """`a@3`: key a, timestamp 3; `A=a@3`: and A as id; `-@3`: no key; `a?@3`: no value."""
    key, timestamp = text.split("@")
    name, _, key = key.rpartition("=")
    value = None if key.endswith("?") else {"id": name or None}
    return {"key": None if key == "-" else key.rstrip("?"), "value": value, "timestamp": int(timestamp)}


def said(records):
    """`a[0/10]=1@3`"""
    return [_text(each) for each in records]


def _text(update):
    window = update["window"]
    span = "" if window is None else f"[{window['start']}/{window['end']}]"
    value = update["value"] and next(iter(update["value"].values()))
    shown = "".join(value) if isinstance(value, list) else value
    return f"{update['key']}{span}={shown}@{update['timestamp']}"


def fed(running, *texts):
    """What comes out of each record, one batch a record."""
    return [" ".join(said(run_all(running, [batch_of([record(text)], at)]))) for at, text in enumerate(texts)]


def with_headers(batch, headers):
    rows = batch.rows.set_column(5, batch.rows.schema.field("headers"), pa.array(headers, pa.utf8()))
    return replace(batch, rows=rows)


def dropped(running, *texts):
    result = running.run(batch_of([record(text) for text in texts]))
    return [(each.reason, timestamp) for each in result.dropped for timestamp in each.rows["timestamp"].to_pylist()]


# ---------------------------------------------------------------- no window


def test_n2_count_without_a_window_drops_null_values():
    assert fed(task(None), "a@10", "a@5", "a?@20", "-@30", "a@12") == ["a=1@10", "a=2@10", "", "", "a=3@12"]


def test_n1_the_fold_follows_the_order_of_processing():
    assert fed(task(None, JOINED), "A=a@10", "B=a@5", "C=a@12") == ["a=A@10", "a=AB@10", "a=ABC@12"]


def test_nulls_without_a_window_are_dropped_with_their_reasons():
    assert sorted(dropped(task(None), "-@1", "a?@2", "a@3")) == [("null_key", 1), ("null_value", 2)]


# ---------------------------------------------------------------- tumbling, hopping


def test_t1_tumbling_with_grace():
    texts = [
        "a@3",
        "a@1",
        "a?@12",
        "a@9",
        "b@14",
        "a@9",
        "b@15",
        "a@9",
        "-@99",
        "a@16",
        "a@10",
        "a@24",
        "a@10",
        "a@25",
        "a@10",
    ]
    assert fed(task(tumbling(10, grace_ms=5)), *texts) == [
        "a[0/10]=1@3",
        "a[0/10]=2@3",
        "a[10/20]=1@12",
        "a[0/10]=3@9",
        "b[10/20]=1@14",
        "a[0/10]=4@9",
        "b[10/20]=2@15",
        "",
        "",
        "a[10/20]=2@16",
        "a[10/20]=3@16",
        "a[20/30]=1@24",
        "a[10/20]=4@16",
        "a[20/30]=2@25",
        "",
    ]


def test_t2_hopping_drops_windows_not_records():
    running = task(hopping(10, 4))
    assert fed(running, "a@0", "a@7", "a@11", "a@7", "a@14", "a@7", "a@9") == [
        "a[0/10]=1@0",
        "a[0/10]=2@7 a[4/14]=1@7",
        "a[4/14]=2@11 a[8/18]=1@11",
        "a[4/14]=3@11",
        "a[8/18]=2@14 a[12/22]=1@14",
        "",
        "a[8/18]=3@14",
    ]
    assert dropped(running, "a@7", "a@9") == [("late", 7), ("late", 7), ("late", 9), ("late", 9)]


def test_no_window_starts_below_zero():
    assert fed(task(hopping(10, 3)), "a@2") == ["a[0/10]=1@2"]


def test_hops_that_do_not_divide_the_size_are_multiples_of_the_advance():
    assert fed(task(hopping(7, 5)), "a@11") == ["a[5/12]=1@11 a[10/17]=1@11"]


def test_a_window_that_ends_exactly_at_the_close_takes_nothing():
    assert fed(task(tumbling(10)), "a@10", "a@9") == ["a[10/20]=1@10", ""]


def test_a_null_value_is_counted_in_a_window_and_skipped_by_other_functions():
    assert fed(task(tumbling()), "a?@1", "a?@2") == ["a[0/10]=1@1", "a[0/10]=2@2"]
    assert fed(task(tumbling(), JOINED), "A=a@1", "a?@2") == ["a[0/10]=A@1", "a[0/10]=A@2"]


def test_a_null_key_does_not_move_time():
    assert fed(task(tumbling()), "a@1", "-@50", "a@2")[2] == "a[0/10]=2@2"


def test_a_key_of_400_bytes_is_kept_whatever_its_bytes():
    for key in ("x" * 400, "\0" * 400, "é" * 200):
        assert fed(task(session()), f"{key}@1", f"{key}@2")[1].count(key) == 2


def test_a_longer_key_is_dropped_and_moves_time():
    running = task(tumbling())
    assert dropped(running, "a@1", "x" * 401 + "@50", "a@2") == [("key_too_long", 50), ("late", 2)]


@pytest.mark.parametrize("at", [2**63 - 1, 2**63 - 10])
@pytest.mark.parametrize("window", [tumbling(), hopping(10, 3), session(), sliding()], ids=lambda w: w["type"])
def test_the_end_of_time_is_a_time(window, at):
    patient = {**window, "grace_ms": 2**63 - 1}
    assert "" not in fed(task(patient), f"a@{at}", f"a@{at}", "a@1")
    fed(task(window), f"a@{at}", f"a@{at}", "a@1")
    fed(task(window, emit="on_window_close"), f"a@{at}", f"a@{at}", "a@1")


def test_windows_may_be_as_long_as_time():
    for window in (tumbling(2**63 - 1), hopping(2**63 - 1, 2**62), session(2**63 - 1), sliding(2**63 - 1)):
        assert "" not in fed(task(window), "a@1", f"a@{2**62}", "a@7")


# ---------------------------------------------------------------- sessions


def test_s2_sessions_grow_and_merge():
    texts = ["a@20", "a@10", "a@15", "a@0", "a?@5", "-@7", "a@20", "a@40", "a@40"]
    assert fed(task(session(5, grace_ms=100)), *texts) == [
        "a[20/20]=1@20",
        "a[10/10]=1@10",
        "a[10/10]=None@10 a[20/20]=None@20 a[10/20]=3@20",
        "a[0/0]=1@0",
        "a[0/0]=None@0 a[10/20]=None@20 a[0/20]=5@20",
        "",
        "a[0/20]=None@20 a[0/20]=6@20",
        "a[40/40]=1@40",
        "a[40/40]=2@40",
    ]


def test_the_gap_is_inclusive_at_both_ends():
    assert fed(task(session(5, grace_ms=99)), "a@10", "a@15")[1] == "a[10/10]=None@10 a[10/15]=2@15"
    assert fed(task(session(5, grace_ms=99)), "a@10", "a@16")[1] == "a[16/16]=1@16"
    assert fed(task(session(5, grace_ms=99)), "a@10", "a@5")[1] == "a[10/10]=None@10 a[5/10]=2@10"
    assert fed(task(session(5, grace_ms=99)), "a@10", "a@4")[1] == "a[4/4]=1@4"


def test_a_record_inside_a_session_gives_a_tombstone_and_the_same_window_again():
    assert fed(task(session()), "a@0", "a@4", "a@2")[2] == "a[0/4]=None@4 a[0/4]=3@4"


def test_the_same_timestamp_again_gives_no_tombstone():
    assert fed(task(session()), "a@3", "a@3") == ["a[3/3]=1@3", "a[3/3]=2@3"]


def test_s5_lateness_counts_the_gap_and_accepts_equality():
    assert fed(task(session(10, grace_ms=1)), "d@0", "d@11", "a@0")[2] == "a[0/0]=1@0"
    assert dropped(task(session(10, grace_ms=1)), "d@0", "d@12", "a@0") == [("late", 0)]


def test_a_late_record_is_taken_where_it_joins_an_open_session():
    assert fed(task(session(5, grace_ms=0)), "a@10", "b@14", "a@7", "a@2") == [
        "a[10/10]=1@10",
        "b[14/14]=1@14",
        "a[10/10]=None@10 a[7/10]=2@10",
        "a[7/10]=None@10 a[2/10]=3@10",
    ]


def test_a_closed_session_never_changes_again():
    """Kafka Streams hides the session at equality already; ours keeps it open there, and closes it for good after."""
    assert fed(task(session(5)), "a@0", "b@5", "a@5")[2] == "a[0/0]=None@0 a[0/5]=2@5"
    assert fed(task(session(5)), "a@0", "b@6", "a@5")[2] == "a[5/5]=1@5"


def test_sessions_merge_from_left_to_right_and_then_the_record():
    running = task(session(5, grace_ms=99), JOINED)
    assert fed(running, "C=a@20", "A=a@10", "B=a@15")[2].endswith("a[10/20]=ACB@20")


def test_updates_of_sessions_carry_no_headers():
    running = task(session())
    batch = batch_of([record("a@1")])
    batch = with_headers(batch, ['{"h":1}'])
    assert running.run(batch).outputs[0][1].column("headers").to_pylist() == [None]


def test_updates_of_windows_carry_the_headers_of_their_record():
    running = task(tumbling())
    batch = batch_of([record("a@1"), record("a@2")])
    batch = with_headers(batch, ['{"h":1}', None])
    assert running.run(batch).outputs[0][1].column("headers").to_pylist() == ['{"h":1}', None]


# ---------------------------------------------------------------- sliding


def test_sl1_sliding_in_the_order_of_kafka_streams():
    texts = ["A=a@10", "B=a@11", "C=a@10", "D=a@13", "E=a@10", "F=a@24", "G=a@5", "H=a@7", "a?@90", "-@91", "I=a@90"]
    assert fed(task(sliding(5, grace_ms=15), JOINED), *texts) == [
        "a[5/10]=A@10",
        "a[11/16]=B@11 a[6/11]=AB@11",
        "a[6/11]=ABC@11 a[5/10]=AC@10",
        "a[11/16]=BD@13 a[12/17]=D@13 a[8/13]=ABCD@13",
        "a[8/13]=ABCDE@13 a[6/11]=ABCE@11 a[5/10]=ACE@10",
        "a[19/24]=F@24",
        "a[5/10]=ACEG@10",
        "a[6/11]=ABCEH@11 a[5/10]=ACEGH@10",
        "",
        "",
        "a[85/90]=I@90",
    ]


def test_sl2_early_records_share_the_window_from_zero():
    texts = ["A=a@0", "B=a@5", "C=a@6", "D=a@3", "E=a@10", "F=a@13", "G=a@0"]
    assert fed(task(sliding(10, grace_ms=50), JOINED), *texts) == [
        "a[0/10]=A@0",
        "a[1/11]=B@5 a[0/10]=AB@5",
        "a[1/11]=BC@6 a[6/16]=C@6 a[0/10]=ABC@6",
        "a[1/11]=BCD@6 a[4/14]=BC@6 a[0/10]=ABCD@6",
        "a[6/16]=CE@10 a[4/14]=BCE@10 a[1/11]=BCDE@10 a[0/10]=ABCDE@10 a[7/17]=E@10",
        "a[7/17]=EF@13 a[6/16]=CEF@13 a[4/14]=BCEF@13 a[11/21]=F@13 a[3/13]=BCDEF@13",
        "a[0/10]=ABCDEG@10",
    ]


def test_sliding_drops_null_values_which_do_not_move_time():
    running = task(sliding(5))
    assert dropped(running, "a@10", "a?@90", "a@11") == [("null_value", 90)]


# ---------------------------------------------------------------- on window close


def finals(window, *texts, **fields):
    return fed(task(window, emit="on_window_close", **fields), *texts)


def test_f2_tumbling_closes_when_its_grace_is_over():
    assert finals(tumbling(10, grace_ms=5), "a@0", "b@5", "a@14", "a@8", "a@15", "a@24", "a@29", "a@44") == [
        "",
        "",
        "",
        "",
        "a[0/10]=2@8 b[0/10]=1@5",
        "",
        "a[10/20]=2@15",
        "a[20/30]=2@29",
    ]


def test_f1_a_jump_of_stream_time_loses_no_window():
    assert finals(tumbling(10), "a@0", "b@5", "a@10", "a@25", "b@40", "b@51", "b@95") == [
        "",
        "",
        "a[0/10]=1@0 b[0/10]=1@5",
        "a[10/20]=1@10",
        "a[20/30]=1@25",
        "b[40/50]=1@40",
        "b[50/60]=1@51",
    ]


def test_f4_hopping_closes_in_the_order_of_start_and_key():
    assert finals(hopping(10, 5), "b@1", "a@6", "a@11", "a@15", "c@21", "a@40") == [
        "",
        "",
        "a[0/10]=1@6 b[0/10]=1@1",
        "a[5/15]=2@11",
        "a[10/20]=2@15",
        "a[15/25]=1@15 c[15/25]=1@21 c[20/30]=1@21",
    ]


def test_f5_sliding_closes_strictly_after_its_grace():
    assert finals(sliding(5, grace_ms=3), "a@2", "a@6", "a@8", "a@9", "b@14", "a@15", "b@30", "b@60") == [
        "",
        "",
        "",
        "a[0/5]=1@2",
        "a[1/6]=2@6 a[3/8]=2@8 a[4/9]=3@9",
        "",
        "a[7/12]=2@9 a[9/14]=1@9 b[9/14]=1@14 a[10/15]=1@15",
        "b[25/30]=1@30",
    ]


def test_e2_sessions_close_in_the_order_of_end_start_and_key():
    assert finals(session(5), "a@0", "b@0", "b@3", "c@5", "a@7", "c@6", "c@9", "c@13", "c@30", "c@60") == [
        "",
        "",
        "",
        "",
        "a[0/0]=1@0",
        "",
        "b[0/3]=2@3",
        "a[7/7]=1@7",
        "c[5/13]=4@13",
        "c[30/30]=1@30",
    ]


def test_a_session_that_closes_at_a_late_record_comes_out_once():
    assert finals(session(5), "a@0", "b@6", "a@0", "b@7") == ["", "a[0/0]=1@0", "", ""]


def test_results_say_why_they_closed():
    running = task(session(5), emit="on_window_close")
    result = running.run(batch_of([record("a@0"), record("b@6")]))
    assert result.outputs[0][1].column("headers").to_pylist() == ['{"millrace-closed-by":"stream_time"}']
    result = running.advance(100, "idle")
    assert result.outputs[0][1].column("headers").to_pylist() == ['{"millrace-closed-by":"idle"}']


def test_the_offset_of_a_result_is_that_of_the_record_that_closed_it():
    running = task(tumbling(10), emit="on_window_close")
    result = running.run(batch_of([record(text) for text in ("a@0", "b@9", "b@10", "c@12", "c@21")], 100))
    assert causes(result) == [102, 102, 104, 104]


def test_a_key_that_is_too_long_closes_windows_too():
    running = task(tumbling(10), emit="on_window_close")
    result = running.run(batch_of([record("a@0"), record("x" * 401 + "@10"), record("a@11")]))
    assert said(outputs(result)) == ["a[0/10]=1@0"]
    assert causes(result) == [1]


def test_a_window_that_is_born_and_closed_inside_a_batch_comes_out():
    running = task(session(5), emit="on_window_close")
    out = run_all(running, [batch_of([record("a@0"), record("a@20"), record("a@40")])])
    assert said(out) == ["a[0/0]=1@0", "a[20/20]=1@20"]


# ---------------------------------------------------------------- advance, horizon


@pytest.mark.parametrize(
    ("window", "horizon"), [(tumbling(10, grace_ms=2), 22), (session(5, grace_ms=2), 21), (sliding(5, grace_ms=2), 16)]
)
def test_the_horizon_is_the_lowest_time_that_closes_everything(window, horizon):
    running = task(window, emit="on_window_close")
    run_all(running, [batch_of([record("b@3"), record("a@13")])])
    assert running.chain.horizon(running.states) == horizon
    before = running.advance(horizon - 1)
    after = running.advance(horizon)
    assert "a" not in [update["key"] for update in outputs(before)]
    assert [update["key"] for update in outputs(after)] == ["a"]
    assert running.chain.horizon(running.states) is None


def test_a_table_has_no_horizon():
    running = task(None)
    run_all(running, [batch_of([record("a@13")])])
    assert running.chain.horizon(running.states) is None


def test_what_was_closed_by_hand_takes_no_more_records():
    running = task(session(5))
    run_all(running, [batch_of([record("a@10")])])
    running.advance(100, "idle")
    assert dropped(running, "a@10", "a@94", "a@1") == [("late", 1), ("closed_idle", 10), ("closed_idle", 94)]
    assert fed(running, "a@95") == ["a[95/95]=1@95"]


# ---------------------------------------------------------------- last per batch


def net(window, *texts):
    return said(run_all(task(window, updates="last_per_batch"), [batch_of([record(text) for text in texts])]))


def test_last_per_batch_tells_the_last_value_in_the_order_of_the_last_change():
    assert net(tumbling(), "a@1", "b@2", "a@3") == ["b[0/10]=1@2", "a[0/10]=2@3"]


def test_a_session_that_was_born_and_gone_inside_a_batch_is_not_told():
    assert net(session(), "a@0", "a@4", "a@6") == ["a[0/6]=3@6"]


def test_a_session_that_was_there_before_is_told_to_be_gone():
    running = task(session(), updates="last_per_batch")
    fed(running, "a@0")
    out = run_all(running, [batch_of([record("a@4"), record("b@4"), record("a@6")])])
    assert said(out) == ["a[0/0]=None@0", "b[4/4]=1@4", "a[0/6]=3@6"]


def test_a_session_that_kept_its_window_is_told_once():
    running = task(session(), updates="last_per_batch")
    fed(running, "a@0", "a@4")
    assert said(run_all(running, [batch_of([record("a@2"), record("a@3")])])) == ["a[0/4]=4@4"]


@pytest.mark.parametrize("emit", ["on_update", "on_window_close"])
def test_a_record_that_would_have_joined_a_session_that_a_flush_closed_says_so(emit):
    """Its own time is past its close; the session that it reaches is not, but for the flush."""
    running = task(session(10), emit=emit)
    run_all(running, [batch_of([record(text) for text in ("u@80", "u@90", "u@100", "v@60")])])
    running.advance(running.chain.horizon(running.states))
    assert dropped(running, "u@75") == [("closed_idle", 75)]
    assert dropped(running, "u@69", "v@61", "w@75", "w@95") == [
        ("late", 69),
        ("late", 61),
        ("late", 75),
        ("closed_idle", 95),
    ]


# ---------------------------------------------------------------- batches that are too large


@pytest.mark.parametrize("window", [hopping(10, 1, grace_ms=3), sliding(10, grace_ms=3)], ids=lambda w: w["type"])
def test_a_batch_with_too_many_windows_is_cut_and_comes_to_the_same(window, monkeypatch):
    records = [record(f"{'abc'[i % 3]}@{i // 2}") for i in range(60)]
    whole = task(window, JOINED)
    expected = run_all(whole, [batch_of(records)])
    monkeypatch.setattr(grouping, "MAX_EVENTS", 50)
    parts = task(window, JOINED)
    assert run_all(parts, [batch_of(records)]) == expected
    assert parts.states == whole.states


def half_way(window):
    """A task of which a record at offset 5 closed a part, and waits."""
    closing = task(window, emit="on_window_close")
    closing.chain._places[0].operator.at_once = 1
    for key in "abcde":
        closing.run(batch_of([record(f"{key}@1")]))
    result = closing.run(batch_of([record("z@1000")], 5))
    assert (result.taken, len(outputs(result))) == (1, 1)
    return closing


def skipped_half_way(window):
    """The same, and the record that waits is passed over."""
    closing = half_way(window)
    result = closing.chain.go_on(closing.states, Origins.none([INPUT], [(0, 5)]))
    closing.replay(result.changes)
    assert outputs(result) == []
    assert not closing.chain.has_backlog(closing.states)
    return closing


def test_a_record_that_was_taken_in_part_waits_in_the_store_and_is_not_fed_again():
    closing = half_way(tumbling(10))
    results = closing.drain()
    assert [len(outputs(result)) for result in results] == [1, 1, 1, 1]
    assert [causes(result) for result in results] == [[5]] * 4
    assert held(closing)["t-agg"][-1][:2] == ("z", (1000, 1010))


def test_what_a_skipped_record_had_begun_to_close_closes_at_the_next_one():
    closing = skipped_half_way(tumbling(10))
    assert run_all(closing, [batch_of([{"key": None, "value": {}, "timestamp": 1}], 6)]) == []
    assert len(run_all(closing, [batch_of([record("y@11")], 7)])) == 4


def test_what_a_skipped_record_had_begun_to_close_is_closed_by_a_flush():
    closing = skipped_half_way(tumbling(10))
    found = 0
    while (horizon := closing.chain.horizon(closing.states)) is not None:
        found += sum(len(outputs(result)) for result in [closing.advance(horizon), *closing.drain()])
    assert found == 4


def test_what_comes_after_a_record_that_was_skipped_half_way_is_late_and_nobody_moved_time():
    closing = skipped_half_way(tumbling(10))
    result = parts(closing, batch_of([record("c@1")], 6))[-1]
    assert [each.reason for each in result.dropped] == ["late"]


@pytest.mark.parametrize(("most", "taken"), [(250, [2, 2, 2]), (50, [1, 0] * 6)])
def test_a_batch_is_cut_between_records_and_what_is_too_much_of_one_waits(most, taken, monkeypatch):
    """Behind another aggregate all updates of a record have its ordinal: 100 windows of each record here."""
    monkeypatch.setattr(grouping, "MAX_EVENTS", most)
    front, behind = (
        {"op": "aggregate", "name": name, "window": hopping(10, 1), "aggregates": COUNT} for name in ("front", "behind")
    )
    batch = batch_of([record(f"a@{100 + i}") for i in range(6)])
    found = parts(Task(job([front, {"op": "select_key", "key": "key"}, behind])), batch)
    assert [result.taken for result in found] == taken

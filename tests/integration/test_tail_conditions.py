"""Tails that choose by a condition: in a process of its own, shared by those who have it; its end is nobody else's."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa
import pytest
import uvloop

from benchmarks.running import PATIENCE_S, wait_until
from service.reads import tails
from service.simulate.child import Limits
from service.simulate.filters import RecordFilter, RecordFilters
from service.simulate.processes import BoundedProcesses
from service.streams.errors import FilterFailed, TooManyFilters
from service.streams.records import RECORD_SCHEMA
from tests.integration.test_streams_api import refused
from tests.integration.test_tails import Event, make, post, tail, values
from tests.serving import Serving, serving

EVEN = "value::bigint % 2 = 0"
AT_ONCE = 3


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, migrated_sqlite: bytes) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("conditions")
    (folder / "catalog.db").write_bytes(migrated_sqlite)
    with serving(folder, f"sqlite:///{folder}/catalog.db", max_tail_filters=AT_ONCE) as running:
        yield running


@pytest.fixture
def stream(service: Serving) -> str:
    return make(service, partitions=2)


def figure(service: Serving, name: str) -> float:
    text = service.client().get("/metrics").text
    return float(re.findall(rf"^millrace_{name} (\S+)$", text, re.MULTILINE)[0])


def filters_of() -> list[psutil.Process]:
    """The processes that conditions of this process's services run in."""
    mine = psutil.Process().children()
    parents = [each for each in mine if "service.simulate.forkserver" in each.cmdline()]
    return [child for parent in parents for child in parent.children()]


def test_records_are_chosen_from_the_past_and_as_they_come(service: Serving, stream: str) -> None:
    post(service, stream, *range(5))
    post(service, stream, *range(5, 10), partition=1)
    with tail(service, stream, **{"from": "earliest", "where": EVEN}) as found:
        assert sorted(values(found, 5)) == [0, 2, 4, 6, 8]
        post(service, stream, 11, 12, 13)
        post(service, stream, 14, partition=1)
        assert values(found, 2) == [12, 14]


def test_who_comes_back_misses_nothing_and_gets_nothing_twice(service: Serving, stream: str) -> None:
    for n in range(12):
        post(service, stream, n, 100 + n, partition=n % 2)
    query = {"from": "earliest", "where": "value::bigint % 3 = 0"}
    with tail(service, stream, **query) as found:
        whole = [next(found) for _ in range(8)]
    for cut, event in enumerate(whole):
        with tail(service, stream, last=event.id, timeout_ms=0, **query) as found:
            rest = [each.data["value"] for each in found if each.event == "message"]
        assert sorted(rest) == sorted(each.data["value"] for each in whole[cut + 1 :])


def test_a_condition_goes_with_a_key_and_a_partition(service: Serving, stream: str) -> None:
    post(service, stream, 2, 3, 4)
    post(service, stream, 2, 3, 4, partition=1)
    with tail(service, stream, **{"from": "earliest", "where": EVEN, "partition": 1}) as found:
        assert values(found, 2) == [2, 4]
    with tail(service, stream, **{"from": "earliest", "where": EVEN, "key": "k4"}) as found:
        assert values(found, 2) == [4, 4]


def test_each_column_of_a_record_can_be_asked_for(service: Serving, stream: str) -> None:
    for n in range(4):
        post(service, stream, n, timestamp=1_000 * n)
    for where, expected in (("key = 'k1'", [1]), ("timestamp >= 2000", [2, 3]), ("window_end IS NULL", [0, 1, 2, 3])):
        with tail(service, stream, **{"from": "earliest", "where": where, "timeout_ms": 0}) as found:
            assert [each.data["value"] for each in found] == expected


def test_a_record_for_which_it_is_null_or_fails_is_left_out_and_the_latter_counted(
    service: Serving, stream: str
) -> None:
    failed = figure(service, "tail_filter_failures_total")
    for value in ("1", '"one"', "null", "[2]", "4"):
        writer = service.client("writer", **{"Content-Type": "application/x-ndjson"})
        body = f'{{"partition":0,"value":{value}}}\n'
        writer.post(f"/v1/streams/{stream}/records", content=body).raise_for_status()
    with tail(service, stream, **{"from": "earliest", "where": "value::bigint > 0", "timeout_ms": 0}) as found:
        assert [each.data["value"] for each in found] == [1, 4]
    assert figure(service, "tail_filter_failures_total") == failed + 2


@pytest.mark.parametrize("query", [{"where": "false"}, {"key": "nobody"}])
def test_who_is_sent_nothing_of_a_busy_stream_hears_where_it_stands(
    service: Serving, stream: str, monkeypatch: pytest.MonkeyPatch, query: dict[str, str]
) -> None:
    """Else it would begin far back when it comes again."""
    monkeypatch.setattr(tails, "HEARTBEAT_S", 0.2)
    monkeypatch.setattr(tails, "CHECK_S", 0.05)
    is_over = threading.Event()

    def produce() -> None:
        while not is_over.is_set():
            post(service, stream, 1)

    producing = threading.Thread(target=produce)
    producing.start()
    try:
        with tail(service, stream, **query) as found:
            heard = [next(found)]
            while len(heard) < 3:  # a condition's process may take longer to start than heartbeats are apart
                following = next(found)
                if following.id != heard[-1].id:
                    heard.append(following)
    finally:
        is_over.set()
        producing.join()
    assert {each.event for each in heard} == {""}
    assert len({each.id for each in heard}) == 3
    with tail(service, stream, last=heard[0].id, timeout_ms=0) as found:
        first = len(list(found))
    with tail(service, stream, last=heard[-1].id, timeout_ms=0) as found:
        assert 0 <= len(list(found)) < first


def test_tails_with_the_same_condition_share_a_process_that_ends_with_them(service: Serving, stream: str) -> None:
    other = make(service, partitions=1)
    with ExitStack() as opened:
        for encoding in ("utf8", "base64"):
            for each in (stream, other):
                post(service, each, 2)
                query = {"from": "earliest", "where": EVEN, "key_encoding": encoding}
                assert values(opened.enter_context(tail(service, each, **query)), 1) == [2]
        assert figure(service, "tail_filters") == 2
        assert len(filters_of()) == 2
    wait_until(lambda: figure(service, "tail_filters") == 0, "the end of the tails")
    wait_until(lambda: not filters_of(), "the end of their processes")


def test_the_end_of_its_process_ends_the_tails_that_have_it_and_no_other(service: Serving, stream: str) -> None:
    """They hear where they stand, and go on there when they come back: by a new process."""
    post(service, stream, 2)
    query = {"from": "earliest", "where": EVEN}
    with (
        tail(service, stream, **query) as one,
        tail(service, stream, **query) as two,
        tail(service, stream, **{"from": "earliest", "where": "true"}) as other,
        tail(service, stream, **{"from": "earliest"}) as plain,
    ):
        assert [values(each, 1) for each in (one, two)] == [[2], [2]]
        [child] = filters_of()[-2:-1]  # in the order in which they began
        child.kill()
        child.wait(PATIENCE_S)
        assert [values(each, 1) for each in (other, plain)] == [[2], [2]]
        post(service, stream, 4)
        ends = [_only(each) for each in (one, two)]
        assert [values(each, 1) for each in (other, plain)] == [[4], [4]]
    for end in ends:
        assert (end.event, end.data["code"]) == ("error", "filter_failed")
        assert end.data["next"] == end.id
        with tail(service, stream, last=end.id, where=EVEN) as again:
            assert values(again, 1) == [4]


def _only(found: Iterator[Event]) -> Event:
    [event] = list(found)
    return event


def test_more_conditions_than_may_be_are_refused_and_one_that_is_there_is_not(service: Serving, stream: str) -> None:
    post(service, stream, 1)
    with ExitStack() as opened:
        for n in range(AT_ONCE):
            query = {"from": "earliest", "where": f"value::bigint > -{n}"}
            assert values(opened.enter_context(tail(service, stream, **query)), 1) == [1]
        path = f"/v1/streams/{stream}/tail"
        answer = service.client("reader").get(path, params={"where": "true"})
        refused(answer, 429, "too_many_filters")
        assert int(answer.headers["Retry-After"]) > 0
        with tail(service, stream, **query) as same:
            assert values(same, 1) == [1]
    wait_until(lambda: figure(service, "tail_filters") == 0, "the end of the tails")
    with tail(service, stream, **{"from": "earliest", "where": "true"}) as found:
        assert values(found, 1) == [1]


@pytest.mark.parametrize(
    ("where", "code"),
    [
        ("", "invalid_request"),
        ("x" * 4_097, "invalid_request"),
        ("value", "invalid_expression"),
        ("1", "invalid_expression"),
        ("random() > 0.5", "invalid_expression"),
        ("value->>'", "invalid_expression"),
        ("amount > 1", "invalid_expression"),
        ("true; drop table streams", "invalid_expression"),
    ],
)
def test_what_is_no_condition_is_refused(service: Serving, stream: str, where: str, code: str) -> None:
    answer = service.client("reader").get(f"/v1/streams/{stream}/tail", params={"where": where})
    assert refused(answer, 422, code) == ["?where"]


def test_a_condition_given_twice_is_refused(service: Serving, stream: str) -> None:
    answer = service.client("reader").get(f"/v1/streams/{stream}/tail?where=true&where=false")
    assert refused(answer, 422, "invalid_request") == ["?where"]


# ---------------------------------------------------------------- bounds


class Filtering:
    """Filters on an event loop of their own, that may take little."""

    def __init__(self, limits: Limits) -> None:
        self.loop = uvloop.new_event_loop()
        self.processes = BoundedProcesses(limits)
        self.filters = RecordFilters(self.processes, 2)

    def ask(self, chosen: RecordFilter, *texts: str) -> list[str]:
        """The values that are left of these, each a JSON text."""
        rows = [{"value": text, "timestamp": 1} for text in texts]
        left = self.loop.run_until_complete(chosen([pa.RecordBatch.from_pylist(rows, schema=RECORD_SCHEMA)]))
        return [text for batch in left for text in batch.column("value").to_pylist()]

    def close(self) -> None:
        self.loop.run_until_complete(self.processes.close())
        self.loop.close()


@pytest.fixture(scope="module")
def tight(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filtering]:
    filtering = Filtering(Limits(memory_bytes=96 << 20, cpu_s=1))
    yield filtering
    filtering.close()


LONG = json.dumps("a" * (8 << 20))
# No automaton of this many states is kept: each byte goes through all of them, half a second a text.
TANGLED = json.dumps(bytes(np.random.default_rng(1).integers(97, 99, 3 << 20, np.uint8)).decode())


@pytest.mark.parametrize(
    ("where", "texts"),
    [
        pytest.param("regexp_matches(value->>'', '[ab]*a[ab]{20}c')", [TANGLED] * 6, id="processor"),
        pytest.param("upper(value->>'') = reverse(value->>'')", [LONG] * 12, id="memory"),
    ],
)
def test_one_that_takes_too_much_is_ended_and_the_next_batch_is_judged(
    tight: Filtering, where: str, texts: list[str]
) -> None:
    with tight.filters.shared("stream", where) as chosen:
        with pytest.raises(FilterFailed, match="not evaluated"):
            tight.ask(chosen, *texts)
        assert tight.ask(chosen, '"x"') == []


def test_time_is_allowed_anew_for_each_batch(tight: Filtering) -> None:
    """All of them together take more than one may."""
    with tight.filters.shared("stream", "length(md5(sha256(value->>''))) = 32") as chosen:
        assert tight.ask(chosen, '"first"') == ['"first"']
        [child] = [each for each in filters_of() if each.is_running()]
        while sum(child.cpu_times()[:2]) < 1.5:
            assert len(tight.ask(chosen, *[json.dumps("x" * 1_000)] * 10_000)) == 10_000
        assert child.is_running()


def test_there_are_no_more_than_may_be(tight: Filtering) -> None:
    with tight.filters.shared("a", "true") as one, tight.filters.shared("b", "true") as two:
        assert one is not two
        with tight.filters.shared("a", "true") as same:
            assert same is one
        with pytest.raises(TooManyFilters):
            tight.filters.check_room("c", "true")
        with pytest.raises(TooManyFilters), tight.filters.shared("a", "false"):
            raise AssertionError
    with tight.filters.shared("c", "true"):
        pass


def test_nothing_is_asked_of_nobody(tmp_path: Path) -> None:
    """No batch, no process."""
    filtering = Filtering(Limits())
    with filtering.filters.shared("stream", "true") as chosen:
        assert filtering.loop.run_until_complete(chosen([])) == []
    filtering.close()

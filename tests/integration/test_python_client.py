"""The Python client against a service that works: each part of it, for callers that block and for asyncio."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Awaitable, Callable, Iterator
from itertools import count, islice
from pathlib import Path
from typing import Any

import pytest

from benchmarks.running import wait_until
from millrace_client import (
    AsyncClient,
    AsyncConsumer,
    AsyncJob,
    AsyncProducer,
    AsyncStore,
    AsyncStream,
    AsyncSubscriptionConsumer,
    Client,
    Consumer,
    DeliveryFailed,
    Job,
    JobFailed,
    Limits,
    NoAnswer,
    Producer,
    Pulls,
    Retries,
    Store,
    Stream,
    SubscriptionConsumer,
    codes,
    errors,
)
from tests.attached import free_port
from tests.serving import Serving

README = Path(__file__).parents[2] / "clients" / "python" / "README.md"
NAMES = (f"client-{n}" for n in count())
COUNTS = {"op": "aggregate", "name": "counts", "aggregates": {"n": {"fn": "count"}}}
SESSIONS = {**COUNTS, "name": "visits", "window": {"type": "session", "gap_ms": 1_000}}


@pytest.fixture
def client(working: Serving) -> Iterator[Client]:
    with Client(working.url, working.secrets["admin"]) as opened:
        yield opened


@pytest.fixture
def stream(client: Client) -> str:
    return make(client)


def make(client: Client, **settings: Any) -> str:
    name = next(NAMES)
    client.call("POST", "/v1/streams", {"name": name, "partitions": 2, **settings}, is_repeatable=True)
    return name


def spec(stream: str, *operators: dict[str, Any]) -> dict[str, Any]:
    return {"name": f"job-{stream}", "source": stream, "operators": list(operators)}


def run(working: Serving, body: Callable[[AsyncClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        async with AsyncClient(working.url, working.secrets["admin"]) as client:
            await body(client)

    asyncio.run(whole())


def values(client: Client, stream: str, number: int) -> list[Any]:
    return [record.value for record in islice(Consumer(client, stream), number)]


# ---------------------------------------------------------------- producers


def test_threads_share_a_producer_and_the_records_of_each_stay_in_order(client: Client, stream: str) -> None:
    with Producer(client, stream, Limits(max_records=7)) as producer:

        def send(thread: int) -> None:
            for n in range(50):
                producer.send([thread, n], key=f"k{thread}")

        threads = [threading.Thread(target=send, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    found = values(client, stream, 200)
    for thread in range(4):
        assert [value for value in found if value[0] == thread] == [[thread, n] for n in range(50)]


def test_a_record_carries_all_that_it_may(client: Client, stream: str) -> None:
    with Producer(client, stream) as producer:
        answer = producer.send({"n": 1}, key="é", timestamp=5, partition=1, headers={"trace": "t1"}).result()
    [record] = islice(Consumer(client, stream), 1)
    assert (answer.accepted, answer.offsets[0].partition, answer.offsets[0].last) == (1, 1, 0)
    assert (record.partition, record.offset, record.timestamp, record.key) == (1, 0, 5, "é")
    assert (record.value, record.window, record.headers) == ({"n": 1}, None, {"trace": "t1"})


def test_posts_end_at_their_limits(client: Client, stream: str) -> None:
    """By number, by size and by time; a record beyond the size goes alone."""
    limits = Limits(max_records=3, max_bytes=100, linger_s=60)
    with Producer(client, stream, limits) as producer:
        assert {producer.send(n) for n in range(3)}.pop().result().accepted == 3
        first, large = producer.send(0), producer.send("x" * 200)
        assert first.result().accepted == 1  # what came did not fit
        assert large.result().accepted == 1
    with Producer(client, stream, Limits(linger_s=0.01)) as producer:
        assert producer.send(1).result().accepted == 1  # without a flush


def test_who_is_too_quick_waits_for_room(client: Client, stream: str) -> None:
    """A buffer of a few records takes any number of them."""
    with Producer(client, stream, Limits(buffer_bytes=200, linger_s=0)) as producer:
        answers = [producer.send("x" * 90) for _ in range(20)]
        assert sum(not answer.done() for answer in answers) <= 3
    assert sum(answer.result().accepted for answer in set(answers)) == 20


def test_what_is_refused_comes_back_with_its_flush_and_the_rest_is_appended(client: Client) -> None:
    stream = make(client, fields={"n": "long"})
    with Producer(client, stream, Limits(max_records=1)) as producer:
        producer.send({"n": 1})
        refused = producer.send({"n": "one"}, key="k")
        producer.send({"n": 2})
        with pytest.raises(DeliveryFailed) as raised:
            producer.flush()
        producer.flush()  # it was said
    [batch] = raised.value.batches
    assert batch.records == [{"value": {"n": "one"}, "key": "k"}]
    assert isinstance(batch.error, codes.InvalidRecords)
    assert batch.error.faults[0].pointer == "/records/0/value/n"
    assert refused.exception() is batch.error
    assert sorted(value["n"] for value in values(client, stream, 2)) == [1, 2]


def test_a_value_that_is_no_json_and_a_closed_producer_are_refused_at_once(client: Client, stream: str) -> None:
    producer = Producer(client, stream)
    for value in (object(), float("nan")):
        with pytest.raises((TypeError, ValueError)):
            producer.send(value)
    producer.close()
    with pytest.raises(RuntimeError, match="closed"):
        producer.send(1)


def test_a_service_that_is_not_there_fails_a_post_when_its_time_is_over() -> None:
    with Client(f"http://127.0.0.1:{free_port()}", retries=Retries(0.001, 0.001)) as nowhere:
        producer = Producer(nowhere, "clicks", Limits(delivery_s=0.1))
        answer = producer.send(1)
        with pytest.raises(DeliveryFailed, match="1 records: POST"):
            producer.close()
        assert isinstance(answer.exception(), NoAnswer)


def test_the_same_for_asyncio(working: Serving, client: Client) -> None:
    stream = make(client, fields={"n": "long"})

    async def body(client: AsyncClient) -> None:
        async with AsyncProducer(client, stream, Limits(max_records=3, buffer_bytes=100)) as producer:
            await asyncio.gather(*(producer.send({"n": n}, partition=0) for n in range(20)))
            await producer.flush()
            last = await (await producer.send({"n": 20}, partition=0))
            assert last.offsets[0].last == 20
            await producer.send({"n": "one"})
            with pytest.raises(DeliveryFailed) as raised:
                await producer.flush()
            assert isinstance(raised.value.batches[0].error, codes.InvalidRecords)
        with pytest.raises(RuntimeError, match="closed"):
            await producer.send({"n": 1})

    run(working, body)
    assert sorted(value["n"] for value in values(client, stream, 21)) == list(range(21))


# ---------------------------------------------------------------- consumers


def post(client: Client, stream: str, *values: Any, **more: Any) -> str:
    records = [{"value": value, **more} for value in values]
    position: str = client.call("POST", f"/v1/streams/{stream}/records", {"records": records})["position"]
    return position


def test_a_consumer_goes_on_where_another_one_stopped(client: Client, stream: str) -> None:
    post(client, stream, *range(20))
    whole = list(islice(Consumer(client, stream), 20))
    for cut in (0, 7, 18):
        rest = Consumer(client, stream, start=whole[cut].position)
        assert list(islice(rest, 19 - cut)) == whole[cut + 1 :]


def test_a_record_counts_as_used_when_the_next_one_is_asked_for(client: Client, stream: str) -> None:
    post(client, stream, 1, 2, 3, partition=0)
    consumer = Consumer(client, stream)
    records = iter(consumer)
    first = next(records)
    assert consumer.position != first.position
    next(records)
    assert consumer.position == first.position
    [again] = islice(Consumer(client, stream, start=consumer.position), 1)
    assert again.value == 2


def test_a_consumer_begins_where_it_is_asked_to_and_takes_what_it_is_for(client: Client, stream: str) -> None:
    position = ""
    for n in range(4):
        position = post(client, stream, n, timestamp=n * 1_000, partition=n % 2, key=f"k{n % 3}")
    assert [record.value for record in islice(Consumer(client, stream, start=3_000), 1)] == [3]
    assert [record.value for record in islice(Consumer(client, stream, partition=1), 2)] == [1, 3]
    assert [record.value for record in islice(Consumer(client, stream, key="k0"), 2)] == [0, 3]
    post(client, stream, 9, partition=1)
    assert [record.value for record in islice(Consumer(client, stream, start=position), 1)] == [9]


def test_what_a_consumer_cannot_go_on_from_is_raised(client: Client, stream: str) -> None:
    with pytest.raises(codes.UnknownStream):
        next(iter(Consumer(client, "nobody")))
    with pytest.raises(codes.InvalidCursor):
        next(iter(Consumer(client, stream, start="elsewhere")))


def test_a_stream_that_is_deleted_ends_its_consumers_behind_its_last_record(client: Client, stream: str) -> None:
    post(client, stream, 1)
    records = iter(Consumer(client, stream))
    assert next(records).value == 1
    client.call("DELETE", f"/v1/streams/{stream}")
    with pytest.raises(errors.NotFoundError):
        next(records)


def test_an_async_consumer_is_the_same(working: Serving, client: Client, stream: str) -> None:
    post(client, stream, 1, 2, 3, partition=0)

    async def body(client: AsyncClient) -> None:
        consumer = AsyncConsumer(client, stream)
        found = []
        async for record in consumer:
            found.append(record.value)
            if len(found) == 3:
                break
        assert found == [1, 2, 3]
        async for again in AsyncConsumer(client, stream, start=consumer.position or ""):
            assert again.value == 3
            break
        with pytest.raises(codes.UnknownStream):
            await anext(AsyncConsumer(client, "nobody").batches())

    run(working, body)


def subscribed(client: Client, stream: str) -> str:
    client.call("POST", f"/v1/streams/{stream}/subscriptions", {"name": "billing", "start": "earliest"})
    return "billing"


def test_what_a_subscriber_did_not_come_to_acknowledge_comes_to_the_next_one(client: Client, stream: str) -> None:
    """A batch is acknowledged when the next one is asked for; who leaves gives its partitions up at once."""
    name, pulls = subscribed(client, stream), Pulls(max_records=4, wait_s=1)
    post(client, stream, *range(10), partition=0)
    with SubscriptionConsumer(client, stream, name, pulls=pulls) as first:
        assert [record.value for record in islice(first, 6)] == list(range(6))
        assert [record.value for record in islice(first, 1)] == [4]  # it was left within its batch
    with SubscriptionConsumer(client, stream, name, pulls=pulls) as second:
        assert [record.value for record in islice(second, 6)] == [4, 5, 6, 7, 8, 9]


def test_a_subscriber_that_comes_back_under_its_name_goes_on_at_once(client: Client, stream: str) -> None:
    """The one before has a lease of an hour, and ended without a word."""
    name, pulls = subscribed(client, stream), Pulls(max_records=2, wait_s=20, lease_s=3_600)
    post(client, stream, 1, 2, 3, partition=0)
    for _ in range(2):
        records = iter(SubscriptionConsumer(client, stream, name, pulls=pulls, name="billing-1"))
        assert next(records).value == 1
    assert [record.value for record in islice(records, 2)] == [2, 3]


def test_a_subscriber_that_asks_for_no_more_says_what_it_is_done_with(client: Client, stream: str) -> None:
    name, pulls = subscribed(client, stream), Pulls(wait_s=1)
    post(client, stream, 1, 2, 3, partition=0)
    post(client, stream, 4, 5, partition=1)
    with SubscriptionConsumer(client, stream, name, pulls=pulls) as consumer:
        given = {record.value: record for record in next(consumer.batches())}
        for _ in range(2):
            consumer.acknowledge(given[2], given[1], given[4])
    with SubscriptionConsumer(client, stream, name, pulls=pulls) as other:
        assert sorted(record.value for record in next(other.batches())) == [3, 5]
    with pytest.raises(codes.LeaseLost):
        consumer.acknowledge(given[3])


def test_a_subscriber_whose_lease_was_lost_goes_on(client: Client, stream: str) -> None:
    name = subscribed(client, stream)
    post(client, stream, 1, 2, partition=0)
    with SubscriptionConsumer(client, stream, name, pulls=Pulls(max_records=1, wait_s=1, lease_s=0.1)) as consumer:
        records = iter(consumer)
        assert next(records).value == 1
        view = f"/v1/streams/{stream}/subscriptions/{name}"
        wait_until(lambda: not client.call("GET", view)["consumers"], "the end of the lease")
        assert [record.value for record in islice(records, 2)] in ([1, 2], [2, 1])


def test_an_async_subscriber_is_the_same(working: Serving, client: Client, stream: str) -> None:
    name = subscribed(client, stream)
    post(client, stream, 1, 2, partition=0)

    async def body(client: AsyncClient) -> None:
        async with AsyncSubscriptionConsumer(client, stream, name) as consumer:
            found = []
            async for record in consumer:
                found.append(record.value)
                if len(found) == 2:
                    break
            assert found == [1, 2]
            await consumer.acknowledge(record)
        view = await client.call("GET", f"/v1/streams/{stream}/subscriptions/{name}")
        assert view["lag_records"] == 0

    run(working, body)


# ---------------------------------------------------------------- jobs and stores


def test_a_job_from_its_submission_to_its_end(client: Client, stream: str) -> None:
    job = Job.submit(client, spec(stream, COUNTS))
    assert Job.submit(client, spec(stream, COUNTS)).view()["id"] == job.view()["id"]  # an equal one is that job
    with pytest.raises(codes.JobExists):
        Job.submit(client, spec(stream, SESSIONS))
    job.wait("running")
    post(client, stream, *range(10), key="k")
    assert job.wait("caught_up")["positions"][0]["lag"] == 0
    other = Job(client, job.name)
    other.view()
    assert job.change(max_batch_records=1_000)["spec"]["max_batch_records"] == 1_000
    with pytest.raises(codes.StaleTag):
        other.change(max_batch_records=2_000)
    other.view()
    assert other.change(max_batch_records=2_000)["spec_version"] == 3
    job.stop()
    with pytest.raises(JobFailed, match="stopped"):
        job.wait("running")
    assert job.wait("stopped")["state"] == "stopped"
    job.view()
    updated = job.update(
        {**spec(stream, {**COUNTS, "name": "totals"}), "standby_replicas": 0}, renames={"counts": "totals"}
    )
    assert updated["stores"] == [f"{job.name}-totals"]
    job.delete()
    with pytest.raises(codes.UnknownJob):
        job.view()


def test_a_job_that_cannot_run_is_waited_for_no_longer_than_asked(client: Client, stream: str) -> None:
    job = Job.submit(client, spec(stream, COUNTS))
    job.wait("running")
    job.pause()
    with pytest.raises(TimeoutError, match="paused"):
        job.wait("running", timeout_s=0.05)
    job.resume()
    job.wait("running")


def test_a_failed_job_says_why(client: Client, stream: str) -> None:
    job = Job.submit(client, spec(stream, {"op": "filter", "where": "(value->>'n')::bigint > 1"}))
    post(client, stream, {"n": "one"})
    with pytest.raises(JobFailed) as raised:
        job.wait("caught_up")
    assert raised.value.code == "expression_failed"


def test_a_store_by_key_by_range_and_as_a_table(client: Client, stream: str) -> None:
    Job.submit(client, spec(stream, SESSIONS))
    for key in ("a", "b", "c/d"):
        position = post(client, stream, 1, 2, key=key, timestamp=5_000)
    store = Store(client, f"job-{stream}-visits")
    found = store.get("c/d", min_position=position, timeout_ms=30_000)
    assert [(entry.key, entry.value, entry.window) for entry in found.entries] == [("c/d", {"n": 2}, (5_000, 5_000))]
    assert found.as_of.lag_records == 0
    assert store.get("nobody").entries == []
    assert [entry.key for entry in store.range(min_position=position, timeout_ms=30_000)] == ["a", "b", "c/d"]
    assert [entry.key for entry in store.range("b", "c", limit=1)] == ["b"]
    assert len(store.to_arrow()["key"]) == 3
    with pytest.raises(codes.UnknownStore):
        Store(client, "nobody").get("k")


def test_a_stream_as_a_table_and_on_behind_it(client: Client) -> None:
    stream = make(client, partitions=1, fields={"n": "long"})
    post(client, stream, *({"n": n} for n in range(5)))
    table = Stream(client, stream).to_arrow(limit=3)
    assert table["value.n"].to_pylist() == [0, 1, 2]
    place = table.schema.metadata[b"millrace.next"].decode()
    assert list(Stream(client, stream).to_pandas(cursor=place)["value.n"]) == [3, 4]
    assert Stream(client, stream).to_arrow(max_bytes=1).num_rows == 1
    assert next(iter(Consumer(client, stream, start=place))).value == {"n": 3}
    with pytest.raises(codes.UnknownStream):
        Stream(client, "nobody").to_arrow()


def test_jobs_and_stores_for_asyncio(working: Serving, client: Client, stream: str) -> None:
    async def body(client: AsyncClient) -> None:
        job = await AsyncJob.submit(client, spec(stream, COUNTS))
        await job.wait("running", timeout_s=60)
        records = {"records": [{"key": "k", "value": 1}]}
        position = (await client.call("POST", f"/v1/streams/{stream}/records", records))["position"]
        store = AsyncStore(client, f"{job.name}-counts")
        found = await store.get("k", min_position=position, timeout_ms=30_000)
        assert [entry.value for entry in found.entries] == [{"n": 1}]
        assert [entry.key async for entry in store.range()] == ["k"]
        assert (await store.to_arrow()).num_rows == 1
        assert (await AsyncStream(client, stream).to_arrow()).num_rows == 1
        assert (await job.change(commit_interval_ms=50))["spec"]["commit_interval_ms"] == 50
        await job.stop()
        assert (await job.wait("stopped"))["state"] == "stopped"
        await job.delete()

    run(working, body)


# ---------------------------------------------------------------- the rest of the API


def test_lists_are_read_to_their_end(client: Client) -> None:
    names = {make(client) for _ in range(3)}
    assert names <= {each["name"] for each in client.items("/v1/streams", {"limit": 2})}


def test_errors_come_by_their_code(working: Serving, client: Client, stream: str) -> None:
    with pytest.raises(codes.UnknownJob):
        client.call("GET", "/v1/jobs/nobody")
    with Client(working.url, "wrong") as stranger, pytest.raises(codes.Unauthenticated):
        stranger.call("GET", "/v1/streams")
    with Client(working.url, working.secrets["reader"]) as reader, pytest.raises(codes.Forbidden):
        reader.call("DELETE", f"/v1/streams/{stream}")


# ---------------------------------------------------------------- what people read


def test_the_examples_of_the_readme_run(working: Serving) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 5
    names: dict[str, Any] = {"KEY": working.secrets["admin"]}
    for block in blocks:
        exec(compile(block.replace("http://127.0.0.1:8080", working.url), "README.md", "exec"), names)
    names["client"].close()

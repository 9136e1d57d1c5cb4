"""Partitions are those of Kafka's default partitioner."""

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.streams.partitioner import murmur2, partition_of, sink_partition_of, split_by_partition
from tests import naive

# org.apache.kafka.common.utils.UtilsTest.testMurmur2
KAFKA = [
    (b"21", -973932308),
    (b"foobar", -790332482),
    (b"a-little-bit-long-string", -985981536),
    (b"a-little-bit-longer-string", -1486304829),
    (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
    (b"abc", 479470107),
]


@pytest.mark.parametrize(("key", "expected"), KAFKA)
def test_murmur2_gives_what_kafka_gives(key, expected):
    assert murmur2(key) == expected


@given(st.binary(max_size=40))
def test_murmur2_equals_the_oracle(key):
    assert murmur2(key) == naive.murmur2(key)


@given(st.lists(st.binary(max_size=20), max_size=20), st.integers(1, 50), st.integers(0, 3))
def test_a_partition_is_the_positive_hash_mod_count_also_of_a_slice(keys, count, skipped):
    found = partition_of(pa.array(keys, pa.binary())[skipped:], count)
    assert found.tolist() == [(naive.murmur2(key) & 0x7FFFFFFF) % count for key in keys[skipped:]]


def test_null_keys_take_turns_from_where_they_are_told_to():
    keys = pa.array([None, b"foobar", None, None, None], pa.binary())
    foobar = (-790332482 & 0x7FFFFFFF) % 3
    assert partition_of(keys, 3, round_robin_start=1).tolist() == [1, foobar, 2, 0, 1]


def test_at_a_sink_null_keys_stay_with_their_task():
    assert sink_partition_of(pa.array([None, None], pa.binary()), 4, task_partition=6).tolist() == [2, 2]


def test_text_keys_hash_as_their_utf8():
    assert (
        partition_of(pa.array(["é", "foobar"]), 7).tolist()
        == partition_of(pa.array(["é".encode(), b"foobar"]), 7).tolist()
    )


def test_one_partition_takes_all_keys_and_no_keys_give_no_partitions():
    assert partition_of(pa.array([b"a", None], pa.binary()), 1).tolist() == [0, 0]
    assert partition_of(pa.array([], pa.binary()), 5).tolist() == []


@given(st.lists(st.none() | st.binary(max_size=3), max_size=20), st.integers(1, 5), st.integers(0, 7))
def test_split_keys_are_where_each_belongs_in_their_order(keys, count, task_partition):
    array = pa.array(keys, pa.binary())
    found = {target: places.tolist() for target, places in split_by_partition(array, count, task_partition)}
    targets = sink_partition_of(array, count, task_partition).tolist()
    assert found == {each: [i for i, target in enumerate(targets) if target == each] for each in sorted(set(targets))}
    assert list(found) == sorted(found)

"""The bytes that Kafka Streams' members and leaders send each other: those of Kafka's own encoder, and all versions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.assign import decoded, encoded
from service.streams.assignment.metadata import (
    ACTIVE,
    LATEST_VERSION,
    NO_REBALANCE,
    UNKNOWN,
    AssignmentInfo,
    FutureVersion,
    GroupVersions,
    MalformedMetadata,
    SubscriptionInfo,
    group_versions,
    version_after,
)

FILE = Path(__file__).parents[2] / "data" / "kafka-infos.jsonl"
INFOS = [json.loads(line) for line in FILE.read_text().splitlines()]
VERSIONS = st.integers(1, LATEST_VERSION)
TASKS = st.tuples(st.integers(0, 2**31 - 1), st.integers(0, 2**31 - 1))
TOPICS = st.text(max_size=20)  # any text: U+0000 and what is beyond 16 bits too, which Java writes in its own way
PARTITIONS = st.lists(st.tuples(TOPICS, st.integers(0, 2**31 - 1)), max_size=4)
HOSTS = st.dictionaries(st.tuples(TOPICS, st.integers(0, 65_535)), PARTITIONS, max_size=3)
ID = UUID("00112233-4455-6677-8899-aabbccddeeff")


def carried(info: dict[str, Any]) -> dict[str, Any]:
    """What of an object its version carries: the first two do not say what else their writer supports; up to version 6
    the offsets of standbys are not in it.
    """
    found = {name: value for name, value in info.items() if name != "hex"}
    if info["version"] < 3:
        found["latest_supported_version"] = -1
    if info["kind"] == "subscription" and info["version"] < 7:
        sums = info["task_offset_sums"].items()
        found["task_offset_sums"] = {task: total if total == ACTIVE else UNKNOWN for task, total in sums}
    return found


def has_one_order(info: dict[str, Any]) -> bool:
    """Whether no map or set in it has several entries: Java writes those in the order of their hashes."""
    maps = [value for value in info.values() if isinstance(value, dict)]
    return all(len(each) <= 1 for each in maps) and all(
        len(value) <= 1 for each in maps for value in each.values() if isinstance(value, list)
    )


@pytest.mark.parametrize("info", INFOS, ids=[f"{i}-{info['kind']}-{info['version']}" for i, info in enumerate(INFOS)])
def test_kafkas_bytes_are_read_and_written(info: dict[str, Any]) -> None:
    assert decoded(info["hex"]) == carried(info)
    written = encoded({name: value for name, value in info.items() if name != "hex"})
    assert decoded(written) == carried(info)
    assert len(written) == len(info["hex"])
    if has_one_order(info):
        assert written == info["hex"]


def test_most_cases_have_one_order() -> None:
    assert sum(map(has_one_order, INFOS)) > len(INFOS) / 2
    assert {info["version"] for info in INFOS} == set(range(1, LATEST_VERSION + 1))


@given(
    version=VERSIONS, sums=st.dictionaries(TASKS, st.integers(0, 2**62) | st.just(ACTIVE)), point=st.text(max_size=9)
)
def test_a_subscription_of_any_version_comes_back(version: int, sums: dict[tuple[int, int], int], point: str) -> None:
    info = SubscriptionInfo(version, ID, sums, point, 11, -7, 4, {"zone": "zöne", "": "x"})
    found = SubscriptionInfo.decode(info.encode())
    if version < 7:
        sums = {task: total if total == ACTIVE else UNKNOWN for task, total in sums.items()}
    assert found.task_offset_sums == sums
    assert found.user_end_point == (point if version >= 2 else "")
    assert found.latest_supported_version == (11 if version >= 3 else -1)
    assert (found.unique_field, found.error_code) == (-7 if version >= 8 else 0, 4 if version >= 9 else 0)
    assert found.client_tags == (info.client_tags if version >= 11 else {})


@given(
    version=VERSIONS,
    active=st.lists(TASKS, max_size=5),
    standby=st.dictionaries(TASKS, PARTITIONS, max_size=3),
    hosts=HOSTS,
    standby_hosts=HOSTS,
)
def test_an_assignment_of_any_version_comes_back(
    version: int, active: list[Any], standby: dict[Any, Any], hosts: dict[Any, Any], standby_hosts: dict[Any, Any]
) -> None:
    info = AssignmentInfo(version, active, standby, hosts, standby_hosts, 11, 3, 1_700_000_000_000)
    found = AssignmentInfo.decode(info.encode())
    assert (found.active_tasks, found.standby_tasks) == (active, standby)
    assert found.partitions_by_host == (hosts if version >= 2 else {})
    assert found.standby_partitions_by_host == (standby_hosts if version >= 6 else {})
    assert found.error_code == (3 if version >= 4 else 0)
    assert found.next_rebalance_ms == (1_700_000_000_000 if version >= 7 else NO_REBALANCE)


@pytest.mark.parametrize("info", [info for info in INFOS if info["version"] in (4, 7, 11)], ids=str)
def test_bytes_that_were_cut_short_or_have_more_are_refused(info: dict[str, Any]) -> None:
    data = bytes.fromhex(info["hex"])
    read = SubscriptionInfo.decode if info["kind"] == "subscription" else AssignmentInfo.decode
    for broken in [*(data[:size] for size in range(len(data))), data + b"\0"]:
        with pytest.raises(MalformedMetadata):
            read(broken)


def test_a_count_that_can_not_be_takes_no_time() -> None:
    with pytest.raises(MalformedMetadata, match="can not be here"):
        AssignmentInfo.decode(bytes.fromhex("0000000b0000000b7fffffff"))


def test_a_leader_goes_down_to_what_all_members_know_and_a_member_comes_up_to_it() -> None:
    """KIP-268: version probing."""
    newer = (13).to_bytes(4) + (13).to_bytes(4) + b"what nobody here can read"
    with pytest.raises(FutureVersion) as future:
        SubscriptionInfo.decode(newer)
    assert (future.value.version, future.value.latest_supported) == (13, 13)
    ours, old = SubscriptionInfo(11, ID).encode(), SubscriptionInfo(7, ID, latest_supported_version=8).encode()
    assert group_versions([newer, ours]) == GroupVersions(11, 11)
    assert group_versions([ours, old]) == GroupVersions(7, 8)
    assert version_after(7, AssignmentInfo(7, commonly_supported_version=8)) == 8
    assert version_after(11, AssignmentInfo(7, commonly_supported_version=7)) == 7
    assert version_after(8, AssignmentInfo(8, commonly_supported_version=8)) is None
    assert version_after(8, AssignmentInfo(2, commonly_supported_version=-1)) is None


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"kind": "neither", "version": 4},
        {"kind": "subscription", "version": 12, "process_id": str(ID), "task_offset_sums": {}},
        {"kind": "subscription", "version": 4, "process_id": "x", "task_offset_sums": {}},
        {"kind": "subscription", "version": 4, "process_id": str(ID), "task_offset_sums": {"0": 1}},
        {"kind": "subscription", "version": 9, "process_id": str(ID), "task_offset_sums": {"0_0": 2**63}},
        {"kind": "assignment", "version": 4, "active_tasks": ["0_1"], "standby_tasks": {"0_2": ["nothing"]}},
        {"kind": "assignment", "version": 4, "active_tasks": 7, "standby_tasks": {}},
    ],
)
def test_what_is_neither_is_refused(document: object) -> None:
    with pytest.raises(MalformedMetadata):
        encoded(document)


@pytest.mark.parametrize("line", ["", "zz", "00", "00000000", "ffffffff", "0000000b0000000b00"])
def test_hex_of_neither_is_refused(line: str) -> None:
    with pytest.raises(MalformedMetadata):
        decoded(line)

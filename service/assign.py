"""`millrace assign`: what Kafka Streams' members and leaders write to each other, as JSON and in hex.

It knows the names of the members of these objects. It refuses to know their bytes (`service.streams.assignment`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import UUID

from service.streams.assignment.metadata import (
    LATEST_VERSION,
    NO_REBALANCE,
    AssignmentInfo,
    Host,
    MalformedMetadata,
    SubscriptionInfo,
    Task,
    TopicPartition,
)

Json = dict[str, Any]
_SUBSCRIPTION_SINCE = {"user_end_point": 2, "unique_field": 8, "error_code": 9, "client_tags": 11}
_ASSIGNMENT_SINCE = {"error_code": 4, "next_rebalance_ms": 7}


def decoded(line: str) -> Json:
    """The object that a line of hex holds. Both kinds begin alike: it is the kind whose bytes come out even.

    Raises MalformedMetadata where it is neither.
    """
    try:
        data = bytes.fromhex(line)
    except ValueError as error:
        raise MalformedMetadata(f"this is no hex: {error}") from error
    try:
        return _of_subscription(SubscriptionInfo.decode(data))
    except MalformedMetadata as no_subscription:
        try:
            return _of_assignment(AssignmentInfo.decode(data))
        except MalformedMetadata as no_assignment:
            message = f"this is no subscription ({no_subscription}) and no assignment ({no_assignment})"
            raise MalformedMetadata(message) from no_assignment


def encoded(document: object) -> str:
    """The hex of an object. Raises MalformedMetadata where it has not the members of its kind."""
    try:
        given = dict(document)  # type: ignore[call-overload]
        info = _subscription(given) if given["kind"] == "subscription" else _assignment(given)
        return info.encode().hex()
    except (KeyError, TypeError, AttributeError, ValueError, struct.error) as error:
        raise MalformedMetadata(f"this is no subscription and no assignment: {error!r}") from error


def _of_subscription(info: SubscriptionInfo) -> Json:
    found: Json = {
        "version": info.version,
        "latest_supported_version": info.latest_supported_version,
        "kind": "subscription",
        "process_id": str(info.process_id),
        "task_offset_sums": {_name(task): total for task, total in sorted(info.task_offset_sums.items())},
    }
    members: Json = {name: getattr(info, name) for name in _SUBSCRIPTION_SINCE}
    return found | {name: value for name, value in members.items() if info.version >= _SUBSCRIPTION_SINCE[name]}


def _of_assignment(info: AssignmentInfo) -> Json:
    found: Json = {
        "version": info.version,
        "latest_supported_version": info.commonly_supported_version,
        "kind": "assignment",
        "active_tasks": [_name(task) for task in info.active_tasks],
        "standby_tasks": {_name(task): _placed(at) for task, at in sorted(info.standby_tasks.items())},
    }
    for member in ("partitions_by_host", "standby_partitions_by_host"):
        hosts: Mapping[Host, Sequence[TopicPartition]] = getattr(info, member)
        if hosts:
            found[member] = {f"{name}:{port}": _placed(at) for (name, port), at in sorted(hosts.items())}
    members: Json = {name: getattr(info, name) for name in _ASSIGNMENT_SINCE}
    return found | {name: value for name, value in members.items() if info.version >= _ASSIGNMENT_SINCE[name]}


def _subscription(given: Json) -> SubscriptionInfo:
    return SubscriptionInfo(
        version=given["version"],
        process_id=UUID(given["process_id"]),
        task_offset_sums={_task(name): total for name, total in given["task_offset_sums"].items()},
        user_end_point=given.get("user_end_point", ""),
        latest_supported_version=given.get("latest_supported_version", LATEST_VERSION),
        unique_field=given.get("unique_field", 0),
        error_code=given.get("error_code", 0),
        client_tags=given.get("client_tags", {}),
    )


def _assignment(given: Json) -> AssignmentInfo:
    hosts, standby_hosts = (
        {_host(name): _partitions(at) for name, at in given.get(member, {}).items()}
        for member in ("partitions_by_host", "standby_partitions_by_host")
    )
    return AssignmentInfo(
        version=given["version"],
        active_tasks=[_task(name) for name in given["active_tasks"]],
        standby_tasks={_task(name): _partitions(at) for name, at in given["standby_tasks"].items()},
        partitions_by_host=hosts,
        standby_partitions_by_host=standby_hosts,
        commonly_supported_version=given.get("latest_supported_version", LATEST_VERSION),
        error_code=given.get("error_code", 0),
        next_rebalance_ms=given.get("next_rebalance_ms", NO_REBALANCE),
    )


def _name(task: Task) -> str:
    return f"{task[0]}_{task[1]}"


def _task(name: str) -> Task:
    sub_topology, partition = name.split("_")
    return int(sub_topology), int(partition)


def _placed(partitions: Iterable[TopicPartition]) -> list[str]:
    return [f"{topic}-{partition}" for topic, partition in partitions]


def _partitions(names: Iterable[str]) -> list[TopicPartition]:
    parts = [name.rpartition("-") for name in names]
    return [(topic, int(partition)) for topic, _, partition in parts]


def _host(name: str) -> Host:
    host, _, port = name.rpartition(":")
    return host, int(port)

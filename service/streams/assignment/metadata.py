"""SubscriptionInfo and AssignmentInfo as Kafka Streams writes them, versions 1 to 11: bytes to values and back.

It knows the layout of each version (semantics-kafka-streams.md 6.9 and 6.10; KIP-429, KIP-441, KIP-708, KIP-924) and
which version a group speaks (6.11). It refuses to know who should have which task, and how the bytes travel.

Everything is big-endian. A task is `(sub-topology, partition)`; names of topologies, which we have none of, are read
past and written as absent. Versions up to 6 say of a copy only whether it was active or standby: offset sums are then
`ACTIVE` or `UNKNOWN`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Self, TypeVar
from uuid import UUID

Task = tuple[int, int]
TopicPartition = tuple[str, int]
Host = tuple[str, int]
T = TypeVar("T")

LATEST_VERSION: Final = 11
EARLIEST_PROBED: Final = 3  # from here on a version names the latest that its writer supports
ACTIVE: Final = -2  # the offset sum of a task that ran: a copy that restores counts as a standby
UNKNOWN: Final = -3
NO_REBALANCE: Final = (1 << 63) - 1

_OFFSET_SUMS, _UNIQUE_FIELD, _SUBSCRIPTION_ERROR, _FLAT_SUMS, _TAGS = 7, 8, 9, 10, 11
_HOSTS, _ERROR, _TOPIC_INDEX, _STANDBY_HOSTS, _NEXT_REBALANCE, _TASK_NAMES = 2, 4, 5, 6, 7, 10


class MalformedMetadata(ValueError):
    """Bytes that are no SubscriptionInfo, or no AssignmentInfo."""


class FutureVersion(MalformedMetadata):
    """A version that is not known here. `latest_supported` is the latest that its writer knows."""

    def __init__(self, version: int, latest_supported: int) -> None:
        super().__init__(f"version {version} is not known here, {LATEST_VERSION} is the latest")
        self.version, self.latest_supported = version, latest_supported


@dataclass(frozen=True, slots=True)
class SubscriptionInfo:
    """A member to the leader. `task_offset_sums`: of each copy on its disk the sum of the offsets of its changelogs."""

    version: int
    process_id: UUID
    task_offset_sums: Mapping[Task, int] = field(default_factory=dict)
    user_end_point: str = ""
    latest_supported_version: int = LATEST_VERSION
    unique_field: int = 0  # -128 to 127; another one asks for a rebalance
    error_code: int = 0
    client_tags: Mapping[str, str] = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes of its version. Raises ValueError for a version that is not known."""
        out = _Writer(_known(self.version))
        out.i32(self.version)
        if self.version >= EARLIEST_PROBED:
            out.i32(self.latest_supported_version)
        out.parts.append(self.process_id.bytes)
        if self.version < _OFFSET_SUMS:
            for is_active in (True, False):
                out.several([t for t, s in self.task_offset_sums.items() if (s == ACTIVE) == is_active], out.numbers)
        if self.version >= _HOSTS:
            out.text(self.user_end_point)
        if self.version >= _OFFSET_SUMS:
            self._encode_sums(out)
        if self.version >= _UNIQUE_FIELD:
            out.i8(self.unique_field)
        if self.version >= _SUBSCRIPTION_ERROR:
            out.i32(self.error_code)
        if self.version >= _TAGS:
            out.several([name for tag in self.client_tags.items() for name in tag], out.text, each=2)
        return b"".join(out.parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes of any version. Raises FutureVersion, MalformedMetadata."""
        read = _Reader(data)
        version, latest = read.versions()
        process_id = UUID(bytes=read.take(16))
        sums: dict[Task, int] = {}
        if version < _OFFSET_SUMS:
            sums = dict.fromkeys(read.several(read.numbers), ACTIVE) | dict.fromkeys(
                read.several(read.numbers), UNKNOWN
            )
        end_point = read.text() if version >= _HOSTS else ""
        if version >= _FLAT_SUMS:
            sums = dict(read.several(read.named_sum))
        elif version >= _OFFSET_SUMS:
            sums = {task: at for group in read.several(read.sums_of_group) for task, at in group}
        unique = read.i8() if version >= _UNIQUE_FIELD else 0
        error = read.i32() if version >= _SUBSCRIPTION_ERROR else 0
        tags = dict(read.several(lambda: (read.text(), read.text()))) if version >= _TAGS else {}
        read.end()
        return cls(version, process_id, sums, end_point, latest, unique, error, tags)

    def _encode_sums(self, out: _Writer) -> None:
        if self.version >= _FLAT_SUMS:
            out.several(self.task_offset_sums.items(), out.named_sum)
            return
        groups: dict[int, list[tuple[int, int]]] = {}
        for (group, partition), offset_sum in self.task_offset_sums.items():
            groups.setdefault(group, []).append((partition, offset_sum))
        out.several(groups.items(), out.sums_of_group)


@dataclass(frozen=True, slots=True)
class AssignmentInfo:
    """The leader to a member. `active_tasks` has an entry for each partition that the member's consumer was given, in
    the order of these: a task with two inputs is there twice.
    """

    version: int
    active_tasks: Sequence[Task] = ()
    standby_tasks: Mapping[Task, Sequence[TopicPartition]] = field(default_factory=dict)
    partitions_by_host: Mapping[Host, Sequence[TopicPartition]] = field(default_factory=dict)
    standby_partitions_by_host: Mapping[Host, Sequence[TopicPartition]] = field(default_factory=dict)
    commonly_supported_version: int = LATEST_VERSION
    error_code: int = 0
    next_rebalance_ms: int = NO_REBALANCE

    def encode(self) -> bytes:
        """The bytes of its version. Raises ValueError for a version that is not known."""
        out = _Writer(_known(self.version))
        out.i32(self.version)
        if self.version >= EARLIEST_PROBED:
            out.i32(self.commonly_supported_version)
        out.several(self.active_tasks, out.task)
        out.several(self.standby_tasks.items(), out.standby)
        if self.version >= _TOPIC_INDEX:
            hosts = [self.partitions_by_host]
            hosts += [self.standby_partitions_by_host] if self.version >= _STANDBY_HOSTS else []
            every = (topic for each in hosts for placed in each.values() for topic, _ in placed)
            out.topics = {topic: i for i, topic in enumerate(dict.fromkeys(every))}
            out.several(out.topics.items(), out.indexed_topic)
            for each in hosts:
                out.several(each.items(), out.host)
        elif self.version >= _HOSTS:
            out.several(self.partitions_by_host.items(), out.host)
        if self.version >= _ERROR:
            out.i32(self.error_code)
        if self.version >= _NEXT_REBALANCE:
            out.i64(self.next_rebalance_ms)
        return b"".join(out.parts)

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """From bytes of any version. Raises FutureVersion, MalformedMetadata."""
        read = _Reader(data)
        version, latest = read.versions()
        active = read.several(read.task)
        standby = dict(read.several(lambda: (read.task(), read.several(read.topic_partition))))
        if version >= _TOPIC_INDEX:
            read.topics = dict(read.several(lambda: (read.i32(), read.utf())))
        hosts = dict(read.several(read.host)) if version >= _HOSTS else {}
        standby_hosts = dict(read.several(read.host)) if version >= _STANDBY_HOSTS else {}
        error = read.i32() if version >= _ERROR else 0
        at = read.i64() if version >= _NEXT_REBALANCE else NO_REBALANCE
        read.end()
        return cls(version, active, standby, hosts, standby_hosts, latest, error, at)


@dataclass(frozen=True, slots=True)
class GroupVersions:
    """The version of a group's assignments, and the latest that all its members support."""

    used: int
    commonly_supported: int


def group_versions(subscriptions: Iterable[bytes]) -> GroupVersions:
    """What a leader answers with: the lowest version used, and the lowest of those supported (6.11).

    A version beyond ours is that of a newer member: it counts by what it supports, and gets our latest. Raises
    MalformedMetadata for other bytes, ValueError where there are none.
    """
    used, supported = [], [LATEST_VERSION]
    for data in subscriptions:
        try:
            found = SubscriptionInfo.decode(data)
            used.append(found.version)
            supported.append(found.latest_supported_version)
        except FutureVersion as future:
            used.append(LATEST_VERSION)
            supported.append(future.latest_supported)
    return GroupVersions(min(used), min(supported))


def version_after(used: int, received: AssignmentInfo) -> int | None:
    """The version that a member joins again with at once, having sent `used`; None where it goes on with it (6.11)."""
    common = received.commonly_supported_version
    is_probed = received.version >= EARLIEST_PROBED and (common > used or received.version < used)
    return common if is_probed else None


def _known(version: int) -> int:
    if not 1 <= version <= LATEST_VERSION:
        raise ValueError(f"version {version} is not known, only 1 to {LATEST_VERSION}")
    return version


# ---------------------------------------------------------------- bytes


class _Writer:
    """The parts of a message of one version."""

    def __init__(self, version: int) -> None:
        self.parts: list[bytes] = []
        self.topics: dict[str, int] | None = None  # where a topic is written as its place in the list of topics
        self._version = version

    def i8(self, value: int) -> None:
        self.parts.append(struct.pack(">b", value))

    def i32(self, value: int) -> None:
        self.parts.append(struct.pack(">i", value))

    def i64(self, value: int) -> None:
        self.parts.append(struct.pack(">q", value))

    def several(self, items: Iterable[T], write: Callable[[T], None], each: int = 1) -> None:
        """A count, and the items; `each` of them count as one."""
        listed = list(items)
        self.i32(len(listed) // each)
        for item in listed:
            write(item)

    def text(self, text: str) -> None:
        """UTF-8 behind four bytes of length."""
        data = text.encode()
        self.i32(len(data))
        self.parts.append(data)

    def utf(self, text: str) -> None:
        """Java's modified UTF-8 behind two bytes of length: each UTF-16 unit by itself, U+0000 as two bytes."""
        units = struct.unpack(f">{len(text.encode('utf-16-be')) // 2}H", text.encode("utf-16-be"))
        data = "".join(map(chr, units)).encode("utf-8", "surrogatepass").replace(b"\0", b"\xc0\x80")
        self.parts.append(struct.pack(">H", len(data)) + data)

    def numbers(self, task: Task) -> None:
        self.parts.append(struct.pack(">ii", *task))

    def task(self, task: Task) -> None:
        self.numbers(task)
        if self._version >= _TASK_NAMES:
            self.i32(0)

    def named_sum(self, item: tuple[Task, int]) -> None:
        self.numbers(item[0])
        self.i64(item[1])
        self.parts.append(struct.pack(">h", -1))

    def sums_of_group(self, item: tuple[int, list[tuple[int, int]]]) -> None:
        self.i32(item[0])
        self.several(item[1], lambda at: self.parts.append(struct.pack(">iq", *at)))

    def topic_partition(self, at: TopicPartition) -> None:
        if self.topics is None:
            self.utf(at[0])
        else:
            self.i32(self.topics[at[0]])
        self.i32(at[1])

    def indexed_topic(self, item: tuple[str, int]) -> None:
        self.i32(item[1])
        self.utf(item[0])

    def standby(self, item: tuple[Task, Sequence[TopicPartition]]) -> None:
        self.task(item[0])
        self.several(item[1], self.topic_partition)

    def host(self, item: tuple[Host, Sequence[TopicPartition]]) -> None:
        self.utf(item[0][0])
        self.i32(item[0][1])
        self.several(item[1], self.topic_partition)


class _Reader:
    """A message, read from its beginning. Everything raises MalformedMetadata where the bytes do not fit."""

    def __init__(self, data: bytes) -> None:
        self.topics: dict[int, str] | None = None
        self._data, self._at, self._version = data, 0, 0

    def versions(self) -> tuple[int, int]:
        """The version, and the latest supported (-1: it does not say). Raises FutureVersion."""
        self._version = self.i32()
        if self._version < 1:
            raise MalformedMetadata(f"there is no version {self._version}")
        latest = self.i32() if self._version >= EARLIEST_PROBED else -1
        if self._version > LATEST_VERSION:
            raise FutureVersion(self._version, latest)
        return self._version, latest

    def take(self, count: int) -> bytes:
        if not 0 <= count <= len(self._data) - self._at:
            raise MalformedMetadata(
                f"at byte {self._at}: {count} bytes are announced, {len(self._data) - self._at} left"
            )
        self._at += count
        return self._data[self._at - count : self._at]

    def i8(self) -> int:
        return int.from_bytes(self.take(1), signed=True)

    def i32(self) -> int:
        return int.from_bytes(self.take(4), signed=True)

    def i64(self) -> int:
        return int.from_bytes(self.take(8), signed=True)

    def several(self, read: Callable[[], T]) -> list[T]:
        count = self.i32()
        if not 0 <= count <= len(self._data) - self._at:  # each takes a byte at least
            raise MalformedMetadata(f"at byte {self._at - 4}: a list of {count} can not be here")
        return [read() for _ in range(count)]

    def text(self) -> str:
        return self._text(self.take(self.i32()))

    def utf(self) -> str:
        data = self.take(int.from_bytes(self.take(2)))
        return self._text(data.replace(b"\xc0\x80", b"\0"), "surrogatepass")

    def _text(self, data: bytes, errors: str = "strict") -> str:
        try:
            text = data.decode("utf-8", errors)
            return text.encode("utf-16-be", errors).decode("utf-16-be")
        except UnicodeError as error:
            raise MalformedMetadata(f"at byte {self._at - len(data)}: no text: {error}") from error

    def numbers(self) -> Task:
        return self.i32(), self.i32()

    def task(self) -> Task:
        task = self.numbers()
        if self._version >= _TASK_NAMES:
            self.take(2 * self.i32())  # the topology's name, in UTF-16
        return task

    def named_sum(self) -> tuple[Task, int]:
        task, offset_sum = self.numbers(), self.i64()
        self.take(max(0, int.from_bytes(self.take(2), signed=True)))
        return task, offset_sum

    def sums_of_group(self) -> list[tuple[Task, int]]:
        group = self.i32()
        return self.several(lambda: ((group, self.i32()), self.i64()))

    def topic_partition(self) -> TopicPartition:
        return self.utf(), self.i32()

    def placed(self) -> TopicPartition:
        """A partition of a topic that stands for its place in the list of topics, where there is one."""
        if self.topics is None:
            return self.topic_partition()
        place = self.i32()
        if place not in self.topics:
            raise MalformedMetadata(f"at byte {self._at - 4}: there is no topic {place}")
        return self.topics[place], self.i32()

    def host(self) -> tuple[Host, list[TopicPartition]]:
        return (self.utf(), self.i32()), self.several(self.placed)

    def end(self) -> None:
        if self._at < len(self._data):
            raise MalformedMetadata(f"{len(self._data) - self._at} bytes are left over")

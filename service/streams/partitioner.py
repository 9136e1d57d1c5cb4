"""Which partition a key belongs to: murmur2 of its bytes, as Kafka's default partitioner says.

It knows keys and a partition count; it refuses to know streams.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from service.streams.kernels import murmur2 as kernel

SHORT: Final = 24  # bytes of a key up to which the loop takes less time in Python than the way into the kernel
_SEED, _M, _WORD = 0x9747_B28C, 0x5BD1_E995, 0xFFFF_FFFF
_NOTHING = np.zeros(1, np.uint8)


def murmur2(key: bytes) -> int:
    """Kafka's hash of one key: a signed 32-bit integer, equal to Java's."""
    if len(key) > SHORT:
        return int(kernel.murmur2(np.frombuffer(key, np.uint8), 0, len(key)))
    words = len(key) & ~3
    h = _SEED ^ len(key)
    for at in range(0, words, 4):
        k = int.from_bytes(key[at : at + 4], "little") * _M & _WORD
        h = (h * _M ^ (k ^ k >> 24) * _M) & _WORD
    if rest := key[words:]:
        h = (h ^ int.from_bytes(rest, "little")) * _M & _WORD
    h = (h ^ h >> 13) * _M & _WORD
    h ^= h >> 15
    return h - (h >> 31 << 32)


def partition_of_key(key: bytes, count: int) -> int:
    """The partition of one key among `count`."""
    return (murmur2(key) & 0x7FFFFFFF) % count


def partition_of(keys: pa.Array, count: int, round_robin_start: int = 0) -> npt.NDArray[np.int32]:
    """Partition of each key (binary or utf8) among `count`; null keys take turns from `round_robin_start` on."""
    found = _hashed(keys, count)
    if keys.null_count:
        nulls = np.flatnonzero(keys.is_null().to_numpy(zero_copy_only=False))
        found[nulls] = (round_robin_start + np.arange(len(nulls))) % count
    return found


def sink_partition_of(keys: pa.Array, count: int, task_partition: int) -> npt.NDArray[np.int32]:
    """As `partition_of`, but null keys stay with their task: its partition mod `count`."""
    found = _hashed(keys, count)
    if keys.null_count:
        found[keys.is_null().to_numpy(zero_copy_only=False)] = task_partition % count
    return found


def split_by_partition(keys: pa.Array, count: int, task_partition: int) -> Iterator[tuple[int, npt.NDArray[np.int64]]]:
    """Partitions that some of the keys belong to, rising, as `sink_partition_of` says, each with the places of its keys
    (int64, ascending).
    """
    if not len(keys):
        return
    targets = sink_partition_of(keys, count, task_partition)
    sizes = np.bincount(targets, minlength=count)
    used = np.flatnonzero(sizes)
    if len(used) == 1:
        yield int(used[0]), np.arange(len(keys))
        return
    places = np.argsort(targets.astype(np.uint16) if count <= 1 << 16 else targets, kind="stable")  # radix: linear
    ends = np.cumsum(sizes)
    for target in used.tolist():
        yield target, places[ends[target] - sizes[target] : ends[target]]


def _hashed(keys: pa.Array, count: int) -> npt.NDArray[np.int32]:
    found = np.zeros(len(keys), np.int32)
    if count > 1 and len(keys):
        _, offsets, data = keys.buffers()
        ends = np.frombuffer(offsets, np.int32)[keys.offset : keys.offset + len(keys) + 1]
        kernel.partitions(np.frombuffer(data, np.uint8) if data else _NOTHING, ends, count, found)
    return found

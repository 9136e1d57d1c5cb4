"""MurmurHash2 of many byte strings, as Kafka's default partitioner computes it.

A loop over Arrow buffers, nothing else. Source: org.apache.kafka.common.utils.Utils.murmur2.
"""

from __future__ import annotations

import numba as nb
import numpy as np

_BYTES = nb.types.Array(nb.uint8, 1, "C", readonly=True)  # Arrow buffers are read-only
_ENDS = nb.types.Array(nb.int32, 1, "C", readonly=True)
SEED = np.uint32(0x9747B28C)
M = np.uint32(0x5BD1E995)


@nb.njit(nb.int32(_BYTES, nb.int64, nb.int64), cache=True)
def murmur2(data, begin, end):  # type: ignore[no-untyped-def]
    """Hash of data[begin:end], equal to Java's signed int."""
    length = end - begin
    h = np.uint32(SEED ^ np.uint32(length))
    words = begin + (length & ~3)
    for i in range(begin, words, 4):
        k = np.uint32(data[i] | (data[i + 1] << 8) | (data[i + 2] << 16) | (data[i + 3] << 24))
        k = np.uint32(k * M)
        k = np.uint32(k ^ (k >> np.uint32(24)))
        h = np.uint32(np.uint32(h * M) ^ np.uint32(k * M))
    for i in range(end - 1, words - 1, -1):
        h = np.uint32(h ^ (np.uint32(data[i]) << np.uint32(8 * (i - words))))
        if i == words:
            h = np.uint32(h * M)
    h = np.uint32(np.uint32(h ^ (h >> np.uint32(13))) * M)
    return np.int32(h ^ (h >> np.uint32(15)))


@nb.njit(nb.void(_BYTES, _ENDS, nb.int32, nb.int32[::1]), cache=True)
def partitions(data, offsets, count, out):  # type: ignore[no-untyped-def]
    """out[i] = partition of the i-th byte string data[offsets[i]:offsets[i + 1]] among `count`."""
    for i in range(len(out)):
        out[i] = (murmur2(data, offsets[i], offsets[i + 1]) & 0x7FFFFFFF) % count

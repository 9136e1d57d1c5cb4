"""From where on a run that begins in the middle of a task's history says what one from the beginning says.

It knows how long a record can matter to one operator with state: nothing of before the run has a time above a bound,
so all of it, and all that the run did otherwise because of that, is over once stream time is far enough beyond. Of what
carries on from record to record (sessions that grow, duplicates of duplicates) it follows how far that has come. It
refuses to know how a task runs, and says nothing of tasks for which this can not be proven.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pydantic import TypeAdapter

from service.streams.operators import AnyOperator
from service.streams.operators.step import OnError
from service.streams.operators.windows import HoppingWindow, SessionWindow, TumblingWindow, closing_delay_ms
from service.streams.topology.chain import ChainResult
from service.streams.topology.graph import SubTopology

Int64s = npt.NDArray[np.int64]

_STATELESS: Final = frozenset({"filter", "map_values"})  # and keys stay what they are
_OF_KEYS: Final = frozenset({"deduplicate_by_key", "deduplicate_by_key_value"})
UNSETTLED: Final = "unsettled"  # why nobody knows, where a run began too late
_FAR: Final = 2**61  # ms: beyond this no time is added up
_SPECS: TypeAdapter[Any] = TypeAdapter(AnyOperator)


class SettledFrom(NamedTuple):
    """The first offset of which all is said, and the time (ms) behind which windows are those of the whole history."""

    offset: int
    time: int


class Settling:
    """The one operator with state of a task, as a run sees it: the records (`words`, `stamps`, `keys`) that move its
    stream time.
    """

    def __init__(self, name: str, spec: Any, *, has_finals: bool) -> None:
        self._name, self._has_finals = name, has_finals
        window = getattr(spec, "window", None)
        self._has_windows, self._is_session = window is not None, isinstance(window, SessionWindow)
        self._size_ms = window.size_ms if isinstance(window, TumblingWindow | HoppingWindow) else 0
        self._lasts_ms = spec.interval_ms if window is None else closing_delay_ms(window)
        self._words: list[Int64s] = []
        self._stamps: list[Int64s] = []
        self._keys: list[pa.Array] = []

    @classmethod
    def of(cls, sub_topology: SubTopology, on_error: OnError) -> Self | None:
        """Of a task; None: it can only be run from its beginning."""
        nodes = sub_topology.nodes
        specs = [_SPECS.validate_python(node.spec) for node in nodes]
        keeping = [i for i, spec in enumerate(specs) if spec.op not in _STATELESS]
        if not keeping or sub_topology.repartitions or on_error != "fail":
            return None
        first, others = keeping[0], keeping[1:]
        spec = specs[first]
        window = getattr(spec, "window", None)
        is_windowed = isinstance(window, TumblingWindow | HoppingWindow | SessionWindow) and not spec.sees_batches
        if spec.op not in _OF_KEYS and not (spec.op == "aggregate" and is_windowed):
            return None
        for i in others:
            own = specs[i]
            is_plain = own.op == "suppress" and own.until == "window_closes" and not own.buffer.is_bounded
            if not is_plain or nodes[i].parent != first:
                return None
        has_finals = bool(others) or getattr(spec, "emit", None) == "on_window_close"
        return cls(nodes[first].name, spec, has_finals=has_finals)

    def note(self, result: ChainResult) -> None:
        """What came to the operator."""
        passage = result.passages.get(self._name)
        if passage is None:
            return
        gone = [
            result.origins.words(each.rows.column("ordinal").to_numpy())
            for each in result.dropped
            if each.operator == self._name and each.reason in ("null_key", "null_value")
        ]
        words = result.origins.words(passage.taken.column("ordinal").to_numpy())
        is_seen = ~np.isin(words, np.concatenate([np.empty(0, np.int64), *gone]))
        self._words.append(words[is_seen])
        self._stamps.append(passage.taken.column("timestamp").to_numpy()[is_seen])
        self._keys.append(passage.taken.column("key").filter(pa.array(is_seen)))

    def settled(self, key: bytes | None, bound: int, moves: Sequence[int], begin: int) -> SettledFrom | None:
        """For what is asked about records of a key; None: nowhere. `bound`: the latest time (ms) of records before the
        run, which begins at the offset `begin`; `moves`: offsets in front of which time was moved.
        """
        whole_ms = self._size_ms + self._lasts_ms
        if max(bound, whole_ms) > _FAR or not self._words:
            return None
        if any(at <= begin for at in moves):  # closed all that was open, at a time of its own
            bound += whole_ms + 1
        words, stamps = np.concatenate(self._words), np.concatenate(self._stamps)
        running = np.maximum.accumulate(stamps) if len(stamps) else stamps
        if self._size_ms:
            found = _first_beyond(words, running, bound + whole_ms, bound + self._size_ms)
        else:
            keys = pa.chunked_array(self._keys).to_pylist()
            if self._has_finals or (self._is_session and any(at > begin for at in moves)):
                found = self._of_all(words, stamps, running, keys, bound)
            else:
                found = self._of_key(words, stamps, running, keys, key, bound)
        if found is None or any(begin < at <= found.offset for at in moves):
            return None
        return found if self._has_windows else found._replace(time=-1)

    def _of_key(
        self,
        words: Int64s,
        stamps: Int64s,
        running: Int64s,
        keys: Sequence[bytes | None],
        key: bytes | None,
        bound: int,
    ) -> SettledFrom | None:
        """Where a record of the key comes when all of the key's before it is over."""
        till = bound
        for word, at, now, own in zip(words.tolist(), stamps.tolist(), running.tolist(), keys, strict=True):
            if own != key:
                continue
            if now > till + self._lasts_ms:
                return SettledFrom(word, till)
            till = max(till, at)
        return None

    def _of_all(
        self, words: Int64s, stamps: Int64s, running: Int64s, keys: Sequence[bytes | None], bound: int
    ) -> SettledFrom | None:
        """Behind the record by which all that may go on from before the run has closed, of all keys."""
        till: dict[bytes | None, int] = {}
        clean = set[bytes | None]()
        for at, now, own in zip(stamps.tolist(), running.tolist(), keys, strict=True):
            if own in clean:
                continue
            last = till.get(own, bound)
            if now > last + self._lasts_ms:
                clean.add(own)
            else:
                till[own] = max(last, at)
        last = max(till.values(), default=bound)
        return _first_beyond(words, running, last + self._lasts_ms, last)


def _first_beyond(words: Int64s, running: Int64s, time: int, windows_from: int) -> SettledFrom | None:
    """Behind the first record that takes stream time beyond `time`."""
    place = int(np.searchsorted(running, time, "right"))
    return SettledFrom(int(words[place]) + 1, windows_from) if place < len(words) else None

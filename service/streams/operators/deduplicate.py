"""deduplicate_by_key, deduplicate_by_key_value, deduplicate: the first record of an identity goes on.

It knows KIP-655 (semantics.md, Deduplicate) with `obs` kept in the store; it refuses to know batches:
every cut of the input gives the same output. Records without an identity go on and are not stored, but
like every record they move `obs`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from service.streams import clock, measures
from service.streams.clock import END_OF_TIME, NOT_STARTED, saturated
from service.streams.expressions import Expression
from service.streams.inputs import Origins
from service.streams.kernels import deduplicate as kernel
from service.streams.layouts import identities
from service.streams.layouts.changelog import sorted_changelog
from service.streams.layouts.reserved import FLOOR_KEY, stream_time, time_at
from service.streams.operators.declaration import Kept, StatefulSpec, operator
from service.streams.operators.fields import Duration, TextExpression, admitted
from service.streams.operators.select_key import as_bytes
from service.streams.operators.step import OnError, Step, evaluate_for
from service.streams.operators.upstream import PLAIN, Upstream
from service.streams.records import Dropped, StateReader, StoreSpec
from service.streams.stores.families import Hashed, Identities, Pairs
from service.streams.stores.reading import Form, Rule

Int64s = npt.NDArray[np.int64]
Identified = tuple[npt.NDArray[np.int32], pa.Array]  # dense id per record (-1 = none), identity per id


class AnyDeduplicateSpec(StatefulSpec):
    """What the three have in common."""

    interval_ms: Duration

    kind: ClassVar[str] = "deduplicate"
    lets_through: ClassVar[bool] = True
    may_change: ClassVar[frozenset[str]] = frozenset({"interval_ms"})

    @property
    def kept(self) -> Kept:
        """An entry an identity, which lives for the interval."""
        return Kept("key_value", "identities", self.interval_ms)

    def runner(self, name: str, on_error: OnError, upstream: Upstream) -> Deduplicate:
        """The same for all."""
        return Deduplicate(self, name, on_error)

    def downstream(self, upstream: Upstream) -> Upstream:
        """Plain records: who looks at keys alone lets one update of several windows through, which is no table."""
        return PLAIN

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """Identities; those that are too long lie under their hash."""
        kept_ms = END_OF_TIME if store.interval_ms is None else store.interval_ms
        return Form((Identities(kept_ms), Hashed(kept_ms, is_key=True)), rule=_remembered(kept_ms))


def _remembered(kept_ms: int) -> Rule:
    """Exactly the interval later it is a duplicate still."""
    return Rule("identity", saturated(kept_ms, 1))


@operator
class DeduplicateByKeySpec(AnyDeduplicateSpec):
    """`{"op": "deduplicate_by_key", "name", "interval_ms"}`: within a key"""

    op: Literal["deduplicate_by_key"]


@operator
class DeduplicateByKeyValueSpec(AnyDeduplicateSpec):
    """`{"op": "deduplicate_by_key_value", "name", "id": expression, "interval_ms"}`: within (key, id)"""

    op: Literal["deduplicate_by_key_value"]
    id: TextExpression

    @classmethod
    def form(cls, name: str, spec: Mapping[str, Any], upstream: Upstream, store: StoreSpec) -> Form:
        """Pairs, under their key."""
        kept_ms = END_OF_TIME if store.interval_ms is None else store.interval_ms
        return Form((Pairs(kept_ms), Hashed(kept_ms, is_key=False)), rule=_remembered(kept_ms))


@operator
class DeduplicateSpec(AnyDeduplicateSpec):
    """`{"op": "deduplicate", "name", "id": expression, "interval_ms"}`: within an id, whatever the key"""

    op: Literal["deduplicate"]
    id: TextExpression

    @property
    def partitioned_by(self) -> str:
        """Records of one id must meet, whatever their keys."""
        return self.id


class Deduplicate:
    """Runs any of the three: they differ in what an identity is, and in nothing else."""

    def __init__(self, spec: AnyDeduplicateSpec, name: str, on_error: OnError) -> None:
        self.name, self.on_error, self.interval_ms = name, on_error, spec.interval_ms
        self.expressions: dict[str, Expression] = {}
        if isinstance(spec, DeduplicateByKeyValueSpec | DeduplicateSpec):
            self.expressions["id"] = admitted(spec.id)
        self.identify = _IDENTIFY[spec.op]

    def process(self, rows: pa.RecordBatch, state: StateReader, origins: Origins) -> Step:
        """The records that are no duplicates, in order; the entries that they leave; the duplicates, dropped."""
        identifiers, dropped = None, []
        if self.expressions:
            done = evaluate_for(self.name, self.expressions, rows, self.on_error)
            rows, identifiers, dropped = done.rows, as_bytes(done.results.column("id")), done.dropped
        if not rows.num_rows:
            return Step(rows, dropped=dropped)
        words = origins.words(rows.column("ordinal").to_numpy())
        return self._judge(rows, self.identify(rows.column("key"), identifiers), words, state, dropped)

    def _judge(
        self, rows: pa.RecordBatch, found: Identified, words: Int64s, state: StateReader, dropped: list[Dropped]
    ) -> Step:
        ids, distinct = found
        entries = _Entries(distinct, state)
        obs, floor = stream_time(state), time_at(FLOOR_KEY, state)
        timestamps = rows.column("timestamp").to_numpy()
        running = clock.observe(obs, timestamps)
        forward = np.empty(len(ids), np.bool_)
        causes, missed_by_ms = np.empty((2, len(ids)), np.int64)
        kernel.deduplicate(
            ids,
            timestamps,
            running,
            words,
            self.interval_ms,
            NOT_STARTED if floor is None else floor,
            entries.stamps,
            entries.origins,
            entries.changed,
            forward,
            causes,
            missed_by_ms,
        )
        now = clock.latest(obs, running)
        changes = entries.changes(now if now != obs else None)
        late = measures.lateness(running, timestamps)
        if forward.all():
            return Step(rows, changes, dropped, late)
        is_repeated = ~forward
        duplicates = Dropped(
            self.name,
            "duplicate",
            rows.filter(pa.array(is_repeated)),
            causes=causes[is_repeated],
            missed_by_ms=missed_by_ms[is_repeated],
        )
        return Step(rows.filter(pa.array(forward)), changes, [*dropped, duplicates], late)


class _Entries:
    """The stored entries of a batch's identities as arrays by dense id: read once, written once, in key order."""

    def __init__(self, distinct: pa.Array, state: StateReader) -> None:
        keys = identities.store_keys(distinct)
        self._order = pc.array_sort_indices(keys)
        self._keys = keys.take(self._order)
        ranked = self._order.to_numpy()
        stored = state.get_many(self._keys.to_numpy(zero_copy_only=False).tolist(), identities.ABSENT_ENTRY)
        self.stamps, self.origins = np.empty(len(keys), np.int64), np.empty(len(keys), np.int64)
        self.stamps[ranked], self.origins[ranked] = identities.unpack_entries(stored)
        self.changed = np.zeros(len(keys), np.bool_)

    def changes(self, obs: int | None) -> pa.RecordBatch | None:
        """The entries that moved (CHANGELOG_SCHEMA), with stream time if it moved; None when nothing did."""
        ranked = self._order.to_numpy()
        written = self.changed[ranked]
        if obs is None and not written.any():
            return None
        moved = ranked[written]
        entries = identities.pack_entries(self.stamps[moved], self.origins[moved])
        return sorted_changelog((self._keys.filter(pa.array(written)), entries), obs)


def _by_key(keys: pa.Array, ids: pa.Array | None) -> Identified:
    encoded = keys.dictionary_encode()
    return _dense(encoded.indices), encoded.dictionary


def _by_id(keys: pa.Array, ids: pa.Array | None) -> Identified:
    return _by_key(ids, None)


def _by_key_and_id(keys: pa.Array, ids: pa.Array | None) -> Identified:
    """Dense ids of pairs: the two are encoded alone, so that only distinct pairs are ever joined as bytes."""
    key_ids, distinct_keys = _by_key(keys, None)
    id_ids, distinct_ids = _by_key(ids, None)
    width = max(len(distinct_ids), 1)
    paired = key_ids.astype(np.int64) * width + id_ids
    encoded = pa.array(paired, mask=(key_ids < 0) | (id_ids < 0)).dictionary_encode()
    pairs = encoded.dictionary.to_numpy()
    pairs_of = identities.pair_identities(
        distinct_keys.take(pa.array(pairs // width)), distinct_ids.take(pa.array(pairs % width))
    )
    return _dense(encoded.indices), pairs_of


def _dense(indices: pa.Array) -> npt.NDArray[np.int32]:
    found: npt.NDArray[np.int32] = indices.fill_null(-1).to_numpy()
    return found


_IDENTIFY: dict[str, Callable[[pa.Array, pa.Array | None], Identified]] = {
    "deduplicate_by_key": _by_key,
    "deduplicate_by_key_value": _by_key_and_id,
    "deduplicate": _by_id,
}

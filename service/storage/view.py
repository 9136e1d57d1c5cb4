"""The view of a store for lookups: Redis, written only by replaying the store's committed changelog.

It is one more replica and keeps the same rules as the one on disk: changes are applied from exactly the position where
it stands, and what stream time has passed goes. It leaves out the indexes by time, which only operators read. Lost or
not to be trusted, it begins anew at 0 and is filled from the changelog. It refuses to know what an entry means, who
committed it and who asks.

millrace:{store/partition}:meta     identity (format, store, lineage), position
                          :values   store key -> value: a hash
                          :index    the store keys of entries in order: a sorted set whose scores are all 0
                          :due      lists of keys by when they are over (`service.storage.expiry`): name and list in
                                    one member of a sorted set

Measured with Redis 7.0 (`benchmarks/view_memory.py`; docs/lookups.md has the table): about 245 bytes an entry, 270 a
window, 330 a session; some 30 of them are its place in a list of `due`.
Each script runs alone in Redis. A range with many changes goes in slices that keep all of a record key together, so
that lookups never wait long, and what they see of a key is always as of one commit; the last slice moves the position.
"""

from __future__ import annotations

import asyncio
import bisect
import functools
import hashlib
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import redis
import redis.asyncio
from redis.exceptions import NoScriptError

from service.storage import expiry
from service.storage.expiry import as_list
from service.streams.clock import NOT_STARTED
from service.streams.layouts import store_keys
from service.streams.layouts.reserved import (
    CLOSED_KEY,
    FLOOR_KEY,
    FORGOT_KEY,
    OBS_KEY,
    TTL_KEY,
    time_in,
    unpack_time,
)
from service.streams.records import StoreSpec
from service.streams.stores.reading import Ask, Findings, Span

T = TypeVar("T")

PREFIX: Final = "millrace:"
SLICE_ROWS: Final = 2048  # of changes in one script: some 8 ms on a busy machine
TIMEOUT_S: Final = 5.0
_FORMAT: Final = 1
_LENGTH: Final = struct.Struct(">I")
_NAME_BYTES: Final = struct.calcsize(">QQI")
_TIMES: Final = {store_keys.SESSION[0]: 16, store_keys.WINDOW[0]: 8}  # bytes of a store key behind the record key
_RESERVED: Final = OBS_KEY[:1]

_BEGIN = """
local identity, position = unpack(redis.call('HMGET', KEYS[1], 'identity', 'position'))
if identity == ARGV[1] and (ARGV[2] == '' or tonumber(position) <= tonumber(ARGV[2])) then return position end
redis.call('UNLINK', unpack(KEYS))
redis.call('HSET', KEYS[1], 'identity', ARGV[1], 'position', '0')
return '0'
"""
# ARGV: identity, from, to (empty: more slices follow), then how many of each, and then these:
# values that are indexed, values that are not (key, value each), deleted keys, new lists, lists that are done
_APPLY = """
local identity, position = unpack(redis.call('HMGET', KEYS[1], 'identity', 'position'))
if identity ~= ARGV[1] or position ~= ARGV[2] then return 0 end
local at = 9
local function each(count, step, call)
  local last = at + count - 1
  while at <= last do
    local upto = math.min(at + step - 1, last)
    call(at, upto)
    at = upto + 1
  end
end
local first_list = 9 + ARGV[4] + ARGV[5] + ARGV[6]
at = first_list + ARGV[7]
each(ARGV[8], 1, function(i) redis.call('ZREM', KEYS[4], ARGV[i]) end)
at = 9 + ARGV[4] + ARGV[5]
each(ARGV[6], 1000, function(i, j)
  if redis.call('HDEL', KEYS[2], unpack(ARGV, i, j)) > 0 then redis.call('ZREM', KEYS[3], unpack(ARGV, i, j)) end
end)
at = 9
each(ARGV[4], 200, function(i, j)
  if redis.call('HSET', KEYS[2], unpack(ARGV, i, j)) > 0 then
    local members = {}
    for n = i, j, 2 do
      members[#members + 1] = 0
      members[#members + 1] = ARGV[n]
    end
    redis.call('ZADD', KEYS[3], unpack(members))
  end
end)
each(ARGV[5], 200, function(i, j) redis.call('HSET', KEYS[2], unpack(ARGV, i, j)) end)
at = first_list
each(ARGV[7], 1, function(i) redis.call('ZADD', KEYS[4], 0, ARGV[i]) end)
if ARGV[3] ~= '' then redis.call('HSET', KEYS[1], 'position', ARGV[3]) end
return 1
"""
# Answers many asks. KEYS: meta, values, index of each; ARGV: each packed, as `_packed` does it: identity, the keys of
# three times (stream time, floor, closed to), limit, whether reversed, start and end of each span. An answer is packed
# in the same way: position, those times (empty: none), for each span how many entries, then their keys and values; nil
# where there is no view.
# (One string an ask: Redis and its client need longer for twenty short ones than for finding them.)
_READ = """
local answers = {}
for n = 1, #ARGV do
  local meta, values, index = KEYS[3 * n - 2], KEYS[3 * n - 1], KEYS[3 * n]
  local at, packed, parts, size = 1, ARGV[n], {}, 0
  local function take()
    local taken
    taken, at = struct.unpack('>I4c0', packed, at)
    return taken
  end
  local function put(found)
    parts[size + 1], parts[size + 2] = struct.pack('>I4', #found), found
    size = size + 2
  end
  local identity, position = unpack(redis.call('HMGET', meta, 'identity', 'position'))
  if identity ~= take() then
    answers[n] = false
  else
    put(position)
    for _, time in ipairs({take(), take(), take()}) do put(redis.call('HGET', values, time) or '') end
    local limit, is_reversed = take(), take() ~= ''
    while at <= #packed do
      local first, last = take(), take()
      if last == first .. '\\0' then
        local value = redis.call('HGET', values, first)
        put(value and '1' or '0')
        if value then
          put(first)
          put(value)
        end
      else
        local keys
        if is_reversed then
          keys = redis.call('ZRANGE', index, '(' .. last, '[' .. first, 'BYLEX', 'REV', 'LIMIT', 0, limit)
        else
          keys = redis.call('ZRANGE', index, '[' .. first, '(' .. last, 'BYLEX', 'LIMIT', 0, limit)
        end
        put(tostring(#keys))
        for i = 1, #keys, 1000 do
          local found = redis.call('HMGET', values, unpack(keys, i, math.min(i + 999, #keys)))
          for j = 1, #found do
            put(keys[i + j - 1])
            put(found[j])
          end
        end
      end
    end
    answers[n] = table.concat(parts)
  end
end
return answers
"""


class ViewMissing(Exception):
    """There is no view of this partition of the store: it was lost, or nobody has begun it."""


class Names:
    """The keys in Redis of one partition of a store, and what its identity must be."""

    def __init__(self, store_id: str, partition: int, lineage: str) -> None:
        prefix = f"{PREFIX}{{{store_id}/{partition}}}:"
        self.keys = [f"{prefix}{name}".encode() for name in ("meta", "values", "index", "due")]
        self.meta, self.values, self.index, self.due = self.keys
        self.read = self.keys[:3]
        self.identity = f"{_FORMAT}/{store_id}/{lineage}".encode()


class View:
    """One partition of a store in Redis, to be written. Many may write it: each applies only where it stands."""

    def __init__(self, client: redis.Redis, store: StoreSpec, names: Names) -> None:
        self._client, self._store, self._names = client, store, names
        self._apply = client.register_script(_APPLY)

    @classmethod
    def open(
        cls, client: redis.Redis, store: StoreSpec, store_id: str, partition: int, lineage: str, end: int | None = None
    ) -> View:
        """The view as it is, or one that begins at 0: there is none, it is of another lineage, or ahead of `end`."""
        names = Names(store_id, partition, lineage)
        client.register_script(_BEGIN)(names.keys, [names.identity, b"" if end is None else end])
        return cls(client, store, names)

    def close(self) -> None:
        """Nothing is to give back: the connection is its maker's."""

    @property
    def path(self) -> str:
        """Where it is, for people."""
        return self._names.meta.decode()

    @property
    def position(self) -> int:
        """The changelog offset up to which it is replayed. Raises ViewMissing when it was lost."""
        identity, position = self._client.hmget(self._names.meta, ["identity", "position"])
        if identity != self._names.identity or position is None:
            raise ViewMissing(self.path)
        return int(position)

    @property
    def entries(self) -> int:
        """Entries held, expired ones that wait to be deleted included."""
        return int(self._client.zcard(self._names.index))

    def apply(self, from_offset: int, to_offset: int, changes: pa.RecordBatch) -> bool:
        """Replay changelog [from_offset, to_offset) (CHANGELOG_SCHEMA, sorted by key, each key once).

        False unless the view stands exactly at `from_offset`; then nothing of it counts.
        """
        if to_offset <= from_offset:
            raise ValueError(f"An empty changelog range: [{from_offset}, {to_offset})")
        if (before := time_in(FORGOT_KEY, changes)) is not None:
            self._forget(from_offset, before)
        looked_up = self._looked_up(changes)
        obs = time_in(OBS_KEY, changes)
        store, due = self._store_and_lists_due(looked_up, obs)
        lists = [name + keys for name, keys in expiry.lists_of(store, to_offset, looked_up)]
        done, over, again = self._settled(store, due, obs, to_offset, looked_up)
        lists += again
        slices = list(_slices(looked_up))
        with self._client.pipeline(transaction=False) as pipe:
            for i, (indexed, plain, deleted) in enumerate(slices):
                is_first, is_last = i == 0, i == len(slices) - 1
                parts = [indexed, plain, deleted + over if is_first else deleted]
                parts += [lists if is_first else [], done if is_first else []]
                head = [self._names.identity, from_offset, to_offset if is_last else b"", *map(len, parts)]
                self._apply(self._names.keys, [*head, *(each for part in parts for each in part)], client=pipe)
            return all(pipe.execute())

    def _forget(self, at_offset: int, before: int) -> None:
        """Delete every entry whose own time is below that, for as long as the view stands there."""
        start, page = b"-", list[bytes]()
        while not page or len(page) == SLICE_ROWS:
            found: Any = self._client.zrange(self._names.index, start, b"+", bylex=True, offset=0, num=SLICE_ROWS)
            page = found
            if not page:
                return
            values: Any = self._client.hmget(self._names.values, page)
            entries = [(key, value) for key, value in zip(page, values, strict=True) if value is not None]
            over = expiry.forgotten(self._store, before, entries) if entries else []
            if over:
                self._apply(self._names.keys, [self._names.identity, at_offset, b"", 0, 0, len(over), 0, 0, *over])
            start = b"(" + page[-1]

    @contextmanager
    def reader(self) -> Iterator[ViewReader]:
        """What can be read now; every call for itself."""
        yield ViewReader(self._client, self._names)

    def _looked_up(self, changes: pa.RecordBatch) -> pa.RecordBatch:
        """Without the indexes by time."""
        if self._store.layout == "identities":
            return changes
        is_index = pc.starts_with(changes.column("key"), store_keys.INDEX)
        return changes.filter(pc.invert(is_index)) if pc.any(is_index).as_py() else changes

    def _store_and_lists_due(self, changes: pa.RecordBatch, obs: int | None) -> tuple[StoreSpec, list[bytes]]:
        """The store as it forgets from these changes on, and the lists that are due at stream time `obs`, where they
        move it: about twice what comes in.

        What is asked for in one round trip.
        """
        most = 2 + 2 * (changes.num_rows // expiry.SLICE_KEYS + 1)
        before = expiry.due_before(NOT_STARTED if obs is None else obs)
        with self._client.pipeline(transaction=False) as pipe:
            pipe.hget(self._names.values, TTL_KEY)
            pipe.zrange(self._names.due, b"-", b"(" + before, bylex=True, offset=0, num=most)
            packed_ttl, due = pipe.execute()
        ttl_ms = time_in(TTL_KEY, changes)
        if ttl_ms is None and packed_ttl:
            ttl_ms = unpack_time(packed_ttl)
        return expiry.in_force(self._store, ttl_ms), due

    def _settled(
        self, store: StoreSpec, due: list[bytes], obs: int | None, to_offset: int, changes: pa.RecordBatch
    ) -> tuple[list[bytes], list[bytes], list[bytes]]:
        """Lists that are done, the keys in them that are over, and lists of those that are not yet.

        Not what these changes write: another writer of the same range may have written it when the deletes arrive.
        """
        if not due or obs is None:
            return [], [], []
        read: Any = functools.partial(self._client.hmget, self._names.values)
        settled = [
            expiry.settled(store, obs, (packed[:_NAME_BYTES], packed[_NAME_BYTES:]), read, (to_offset, n))
            for n, packed in enumerate(due)
        ]
        written = set(as_list(changes.column("key")))
        over = [key for each in settled for key in each.over if key not in written]
        return due, over, [name + keys for each in settled for name, keys in each.again]


class ViewReader:
    """Reads a view (StateReader). Raises ViewMissing when there is none."""

    def __init__(self, client: redis.Redis, names: Names) -> None:
        self._client, self._names = client, names
        self._read = client.register_script(_READ)

    @property
    def position(self) -> int:
        return self.look_up(Ask(0, (), 1, False)).position

    def get(self, key: bytes) -> bytes | None:
        found: Any = self._client.hget(self._names.values, key)
        return None if found is None else bytes(found)

    def get_many(self, keys: list[bytes], default: bytes) -> list[bytes]:
        """Values in the order of `keys`."""
        found: Any = self._client.hmget(self._names.values, keys) if keys else []
        return [default if value is None else value for value in found]

    def scan(
        self, start: bytes, end: bytes, limit: int | None = None, *, reverse: bool = False
    ) -> list[tuple[bytes, bytes]]:
        """Entries with start <= key < end in the order of their keys, or from the last one down."""
        ask = Ask(0, (Span(start, end),), -1 if limit is None else limit, reverse)
        return list(self.look_up(ask).found[0])

    def look_up(self, ask: Ask) -> Findings:
        """Answer an ask, all of it at one moment."""
        (packed,) = self._read(self._names.read, [_packed_ask(self._names, ask)])
        if packed is None:
            raise ViewMissing(self._names.meta.decode())
        return _told(packed)


class Views:
    """Views as a process reads them that answers many at once: what is asked while an answer is on its way goes
    together, next. Belongs to one event loop.
    """

    def __init__(self, url: str) -> None:
        self._client = redis.asyncio.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
        self._script = hashlib.sha1(_READ.encode()).hexdigest()  # noqa: S324  how Redis names a script
        self._waiting: list[_Waiting] = []
        self._under_way: asyncio.Task[None] | None = None

    async def look_up(self, names: Names, ask: Ask) -> Findings:
        """Answer an ask, all of it at one moment. Raises ViewMissing, redis.RedisError."""
        return await self.ask(names, ask, _as_found)

    def ask(self, names: Names, ask: Ask, made: Callable[[Findings], T]) -> asyncio.Future[T]:
        """What is `made` of the findings of an ask, soon. Its errors: ViewMissing, redis.RedisError."""
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._waiting.append(_Waiting(names, ask, made, future))
        if self._under_way is None:
            self._under_way = asyncio.create_task(self._ask_all())
        return future

    async def size(self, names: Names) -> tuple[int, int]:
        """Entries, expired ones included, and about the bytes that they take in Redis."""
        async with self._client.pipeline(transaction=False) as pipe:
            pipe.zcard(names.index)
            for key in names.keys:
                pipe.execute_command("MEMORY", "USAGE", key)
            entries, *sizes = await pipe.execute()
        return int(entries), sum(size or 0 for size in sizes)

    async def ping(self) -> None:
        """Raises redis.RedisError when Redis does not answer."""
        await self._client.ping()

    async def close(self) -> None:
        """Close the connections; what is asked and not answered will not be."""
        if self._under_way is not None:
            self._under_way.cancel()
            await asyncio.wait([self._under_way])
        await self._client.aclose()

    async def _ask_all(self) -> None:
        try:
            while self._waiting:
                asked, self._waiting = self._waiting, []
                await self._ask(asked)
        finally:
            self._under_way = None

    async def _ask(self, asked: list[_Waiting]) -> None:
        try:
            replies = await self._replies(asked)
        except redis.RedisError as error:
            replies = [error] * len(asked)
        for each, reply in zip(asked, replies, strict=True):
            if each.future.done():
                continue  # nobody waits any more
            if isinstance(reply, redis.RedisError):
                each.future.set_exception(reply)
            elif reply is None:
                each.future.set_exception(ViewMissing(each.names.meta.decode()))
            else:
                _make(each, reply)

    async def _replies(self, asked: list[_Waiting]) -> list[Any]:
        keys = [key for each in asked for key in each.names.read]
        packed = [_packed_ask(each.names, each.ask) for each in asked]
        client: Any = self._client  # what it lets pass here has no types
        command = ("EVALSHA", self._script, len(keys), *keys, *packed)
        try:
            replies: list[Any] = await client.execute_command(*command)
        except NoScriptError:
            await client.script_load(_READ)
            replies = await client.execute_command(*command)
        return replies


class _Waiting(NamedTuple):
    names: Names
    ask: Ask
    made: Callable[[Findings], Any]
    future: asyncio.Future[Any]


def _make(asked: _Waiting, reply: bytes) -> None:
    try:
        asked.future.set_result(asked.made(_told(reply)))
    except Exception as error:  # noqa: BLE001  the border of one lookup: others came along with it, and wait
        asked.future.set_exception(error)


def _as_found(findings: Findings) -> Findings:
    return findings


def sweep(client: redis.Redis, lineage: str, live: Callable[[], Collection[str]]) -> int:
    """Delete the views of stores that are not `live` any more (asked after looking for views); returns how many.

    Those of another lineage are left alone: another service may use the same Redis.
    """
    found: list[tuple[str, list[bytes]]] = []
    for meta in client.scan_iter(match=f"{PREFIX}*:meta", count=1000):
        held: Any = client.hget(meta, "identity") or b""
        identity = held.decode().split("/")
        if len(identity) == 3 and identity[2] == lineage:
            names = [meta[: -len(b"meta")] + name for name in (b"meta", b"values", b"index", b"due")]
            found.append((identity[1], names))
    kept = set(live()) if found else set()
    gone = [names for store_id, names in found if store_id not in kept]
    for names in gone:
        client.unlink(*names)
    return len(gone)


def connect(url: str) -> redis.Redis:
    """A client for writers."""
    client: redis.Redis = redis.Redis.from_url(url, socket_timeout=TIMEOUT_S, socket_connect_timeout=TIMEOUT_S)
    return client


def _packed(parts: Iterable[bytes]) -> bytes:
    """Byte strings in one: each behind its length (uint32 big-endian)."""
    return b"".join([piece for part in parts for piece in (_LENGTH.pack(len(part)), part)])


def _unpacked(packed: bytes) -> Iterator[bytes]:
    """The inverse of `_packed`."""
    at, end = 0, len(packed)
    read, width = _LENGTH.unpack_from, _LENGTH.size
    while at < end:
        start = at + width
        at = start + read(packed, at)[0]
        yield packed[start:at]


def _packed_ask(names: Names, ask: Ask) -> bytes:
    head = (names.identity, OBS_KEY, FLOOR_KEY, CLOSED_KEY, b"%d" % ask.limit, b"1" if ask.reverse else b"")
    return _packed([*head, *(bound for span in ask.spans for bound in span)])


def _told(packed: bytes) -> Findings:
    """What the script answered."""
    parts = _unpacked(packed)
    position, obs, floor, closed_to = next(parts), next(parts), next(parts), next(parts)
    found = [[(next(parts), next(parts)) for _ in range(int(count))] for count in parts]
    return Findings(
        int(position),
        unpack_time(obs) if obs else NOT_STARTED,
        found,
        unpack_time(floor) if floor else None,
        unpack_time(closed_to) if closed_to else None,
    )


def _slices(changes: pa.RecordBatch) -> Iterator[tuple[list[bytes], list[bytes], list[bytes]]]:
    """(values that are indexed, values that are not, deleted keys), at least one; in the last what is not indexed."""
    rows = list(zip(as_list(changes.column("key")), as_list(changes.column("value")), strict=True))
    reserved = [part for key, value in rows if key[:1] == _RESERVED and value is not None for part in (key, value)]
    cuts = _cuts([key for key, _ in rows])
    indexed: list[list[bytes]] = [[] for _ in range(len(cuts) + 1)]
    deleted: list[list[bytes]] = [[] for _ in range(len(cuts) + 1)]
    for key, value in rows:
        place = bisect.bisect_right(cuts, key[1:])
        if value is None:
            deleted[place].append(key)
        elif key[:1] != _RESERVED:
            indexed[place] += (key, value)
    for place in range(len(cuts) + 1):
        yield indexed[place], reserved if place == len(cuts) else [], deleted[place]


def _cuts(keys: Sequence[bytes]) -> list[bytes]:
    """Record keys at which to cut, for slices of about SLICE_ROWS."""
    if len(keys) <= SLICE_ROWS:
        return []
    owners = sorted(key[1 : len(key) - _TIMES.get(key[0], 0)] for key in keys)
    return sorted(set(owners[SLICE_ROWS::SLICE_ROWS]))

"""A group's one transaction: chunks with their offsets, and the answers to Idempotency-Keys beside them.

Knows what else must hold when records are published: the settings they were judged by, keys that nobody else has taken.
Refuses to know how the segment came to be written.

The answer to an Idempotency-Key is stored in the transaction that publishes the records: whoever asks again gets it,
in this process or another, also when this one dies in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from sqlalchemy.orm import Session

from service.catalog.ingest_keys import find_response, remember
from service.catalog.segments import VersionsPassed, publish
from service.catalog.streams import mark_custom_partitioning
from service.catalog.tables import IngestKeyRow
from service.ingest.appends import Answer, Append, Idempotency, Posts, SettingsChanged
from service.positions import Position, opaque
from service.storage.segments import EncodedSegment
from service.streams.errors import IdempotencyConflict
from service.streams.records import Published

Outcome = Answer | Exception


class Settled(Exception):
    """Some of a group have an outcome without it; its transaction is undone, and the others go again."""

    def __init__(self, outcomes: Mapping[Append | Posts, Outcome]) -> None:
        self.outcomes = outcomes


def publish_group(
    s: Session, segment_id: str, segment: EncodedSegment, group: Sequence[Append | Posts], lineage: str
) -> list[list[Answer]]:
    """The one transaction of a group; the answers of each of it. Locks in the catalog's order: streams, segment,
    partitions, then keys. Raises Settled.
    """
    for stream_id in sorted({append.stream_id for append in group if append.is_custom}):
        mark_custom_partitioning(s, stream_id)
    versions = {(append.stream_id, append.version) for append in group if append.version is not None}
    try:
        published = publish(s, segment_id, bytes=segment.bytes, chunks=segment.chunks, versions=versions)
    except VersionsPassed as error:
        passed = [append for append in group if (append.stream_id, append.version) in error.versions]
        raise Settled({append: SettingsChanged() for append in passed}) from error
    answers = _answers(group, published, lineage)
    _keep_all(s, group, answers)
    return answers


def _keep_all(s: Session, group: Sequence[Append | Posts], answers: Sequence[list[Answer]]) -> None:
    keyed = [
        (append.idempotency, append, answer)
        for append, (answer, *_) in zip(group, answers, strict=True)
        if append.idempotency is not None
    ]
    taken: dict[Append | Posts, Outcome] = {}
    for idempotency, append, answer in sorted(keyed, key=lambda entry: entry[0].scope):
        stored = _keep(s, idempotency, answer)
        if stored is not None:
            taken[append] = answer_of(stored, idempotency)
    if taken:
        raise Settled(taken)


def _keep(s: Session, idempotency: Idempotency, answer: Answer) -> IngestKeyRow | None:
    """Store an answer; what is stored already where that is another one (the same one: this very publication,
    asked again)."""
    owner, stream_id, key = idempotency.scope
    names = {"api_key_id": owner, "stream_id": stream_id, "idempotency_key": key}
    if remember(s, **names, body_sha256=idempotency.body_sha256, response=answer):
        return None
    stored = stored_answer(s, idempotency)
    return None if stored is None or stored.response == answer else stored


def stored_answer(s: Session, idempotency: Idempotency) -> IngestKeyRow | None:
    """What is stored under a key, if anything."""
    owner, stream_id, key = idempotency.scope
    return find_response(s, api_key_id=owner, stream_id=stream_id, idempotency_key=key)


def answer_of(stored: IngestKeyRow, idempotency: Idempotency) -> Outcome:
    """What a key stands for: the answer it got, where the body is the same."""
    same = stored.body_sha256 == idempotency.body_sha256
    return stored.response if same else IdempotencyConflict(idempotency.key)


def _answers(group: Sequence[Append | Posts], published: Iterable[Published], lineage: str) -> list[list[Answer]]:
    """Which offsets each request got: the chunks' offsets, handed out in the order of the group."""
    reached = {(chunk.stream_id, chunk.partition): chunk.first_offset for chunk in published}
    answers = []
    for append in group:
        of_append = []
        for share in append.shares():
            offsets = []
            for partition, records in share:
                first = reached[append.stream_id, partition]
                reached[append.stream_id, partition] = end = first + records
                offsets.append({"partition": partition, "first": first, "last": end - 1})
            ends = {str(at["partition"]): at["last"] + 1 for at in offsets}
            position = opaque(Position(append.stream_id, lineage, ends))
            accepted = sum(records for _, records in share)
            warnings = {"warnings": append.warnings} if append.warnings else {}
            of_append.append({"accepted": accepted, "offsets": offsets, "position": position, **warnings})
        answers.append(of_append)
    return answers

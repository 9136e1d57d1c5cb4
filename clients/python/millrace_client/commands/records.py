"""Records: followed as they come, and posted from files of NDJSON."""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Final

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    FileSizeColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TransferSpeedColumn,
)

from millrace_client.commands.asking import Asked, StreamName
from millrace_client.commands.failures import Failed, failure_of
from millrace_client.commands.manifests import STDIN
from millrace_client.commands.printing import compact, moment, optional, print_json, printable
from millrace_client.consumer import Consumer
from millrace_client.errors import DeliveryFailed, MillraceError
from millrace_client.exchanges import path_of
from millrace_client.producer import Producer
from millrace_client.records import Appended, Record

MEMBERS: Final = {"value", "key", "timestamp", "partition", "headers"}
INTERRUPTED: Final = 130  # as shells have it


def tail(
    asked: Asked,
    stream: StreamName,
    start: Annotated[
        str, typer.Option("--from", help="earliest, latest, a time in ms, or a position that a post or record had.")
    ] = "latest",
    key: Annotated[str | None, typer.Option(help="Records with this key alone.")] = None,
    where: Annotated[str | None, typer.Option(help="Those alone for which this SQL condition holds.")] = None,
    partition: Annotated[int | None, typer.Option(min=0, help="Records of this partition alone.")] = None,
    most: Annotated[
        int | None, typer.Option("--max", min=1, help="End after so many.", show_default="follow for ever")
    ] = None,
) -> None:
    """Follow a stream: records as they come, through restarts of the service; Ctrl-C ends it."""
    asked.client.call("GET", path_of("streams", stream))  # says at once what is wrong, where following is patient
    consumer = Consumer(asked.client, stream, start=start, partition=partition, key=key, where=where)
    try:
        for record in islice(consumer, most):
            _show(asked, record)
            sys.stdout.flush()
    except KeyboardInterrupt:
        raise typer.Exit(INTERRUPTED) from None


def _show(asked: Asked, record: Record) -> None:
    if asked.is_json:
        window = record.window._asdict() if record.window else None
        members = {
            "partition": record.partition,
            "offset": record.offset,
            "timestamp": record.timestamp,
            "key": record.key,
            "value": record.value,
            "window": window,
            "headers": dict(record.headers),
            "position": record.position,
        }
        print_json(members, indent=None)
        return
    place = f"{record.partition}/{record.offset}"
    line = f"{place:>8}  {moment(record.timestamp)}  {optional(record.key)}  {compact(record.value)}"
    typer.echo(printable(line))


# ---------------------------------------------------------------- posting


@dataclass(slots=True)
class _Line:
    """A line that was handed in, and the post that it went into."""

    number: int
    post: Future[Appended]


@dataclass(slots=True)
class _Posting:
    """Lines on their way; `posts`: those that are not known to be appended, the oldest first."""

    file: str
    appended: int = 0
    last: Appended | None = None
    lines: deque[_Line] = field(default_factory=deque)

    def send(self, producer: Producer, number: int, line: bytes, is_values: bool) -> None:
        """Hand a line in. Raises Failed where it is no record, or one before it was refused."""
        try:
            self.lines.append(_Line(number, producer.send(**_record(line, is_values))))
        except ValueError as error:
            raise Failed(f"{self.file}:{number}: {error}") from None
        self.settle()

    def settle(self, *, is_all: bool = False) -> None:
        """Count the lines that are appended. Raises Failed with the line that was refused."""
        while self.lines and (is_all or self.lines[0].post.done()):
            post = self.lines[0].post
            error = post.exception()
            if error is not None:
                raise self._failed(error, [line.number for line in self.lines if line.post is post])
            self.last = post.result()
            self.lines.popleft()
            self.appended += 1

    def _failed(self, error: BaseException, numbers: list[int]) -> Failed:
        if not isinstance(error, MillraceError):
            raise error

        def place(pointer: str) -> str:
            """`/records/3/value/n` is that of a line."""
            _, _, rest = pointer.partition("/records/")
            index, _, below = rest.partition("/")
            if not index.isdecimal() or int(index) >= len(numbers):
                return pointer
            return f"{self.file}:{numbers[int(index)]} /{below}".rstrip(" /")

        failed = failure_of(error, place)
        return Failed(f"{failed}; {self.appended} records before line {numbers[0]} are appended", failed.exit_code)


def post(
    asked: Asked,
    stream: StreamName,
    file: Annotated[Path, typer.Argument(help="NDJSON; `-`: standard input.")] = Path(STDIN),
    is_values: Annotated[
        bool, typer.Option("--values", help="A line is a value, not a record with `value`, `key`, `timestamp`, ….")
    ] = False,
) -> None:
    """Append records from lines of JSON, in their order."""
    asked.client.call("GET", path_of("streams", stream))
    with _opened(file) as (lines, size):
        name = "standard input" if str(file) == STDIN else str(file)
        posting = _post(asked, stream, lines, _Posting(name), is_values, size)
    position = posting.last.position if posting.last else None
    view = {"stream": stream, "appended": posting.appended, "position": position}
    asked.done(view, f"{posting.appended} records appended to {stream}, position {optional(position)}")


def _post(asked: Asked, stream: str, lines: BinaryIO, posting: _Posting, is_values: bool, size: int | None) -> _Posting:
    """All lines of a file. Raises Failed; nothing is sent behind a line that is refused or none."""
    producer = Producer(asked.client, stream)
    with _progress(size) as (progress, task), _ended(producer):
        for number, line in enumerate(lines, 1):
            if line.strip():
                posting.send(producer, number, line, is_values)
            progress.advance(task, len(line))
    posting.settle(is_all=True)
    return posting


@contextmanager
def _ended(producer: Producer) -> Iterator[None]:
    try:
        yield
    finally:
        with suppress(DeliveryFailed):  # each line knows its post, and says it
            producer.close()


def _record(line: bytes, is_values: bool) -> dict[str, Any]:
    """The arguments of `Producer.send`. Raises ValueError."""
    try:
        data = json.loads(line)
    except ValueError as error:
        raise ValueError(f"is no JSON: {error}") from None
    if is_values:
        return {"value": data}
    if not isinstance(data, dict) or not data.keys() <= MEMBERS or "value" not in data:
        raise ValueError("is no record: `value`, and maybe `key`, `timestamp`, `partition`, `headers`")
    return data


@contextmanager
def _opened(file: Path) -> Iterator[tuple[BinaryIO, int | None]]:
    """The file's bytes, and how many they are if that is known."""
    if str(file) == STDIN:
        yield sys.stdin.buffer, None
        return
    try:
        opened = file.open("rb")
    except OSError as error:
        raise Failed(f"{file} can not be read: {error}") from None
    with opened:
        yield opened, file.stat().st_size


@contextmanager
def _progress(size: int | None) -> Iterator[tuple[Progress, TaskID]]:
    """A bar on stderr, where that is a terminal."""
    columns = (TextColumn("posting"), BarColumn(), FileSizeColumn(), TransferSpeedColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty(), transient=True) as progress:
        yield progress, progress.add_task("", total=size)

"""How a command says that something is wrong: one line on stderr, and an exit code that says of which kind it is.

Knows the codes (docs/cli.md). Refuses to know which command it is about.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import typer

from millrace_client.commands.printing import printable
from millrace_client.errors import (
    ApiError,
    Fault,
    MillraceError,
    NoAnswer,
    NotAuthenticatedError,
    PermissionDeniedError,
    ServerError,
    TooManyRequestsError,
    UnavailableError,
)

FAILED: Final = 1  # a file, the configuration
REFUSED: Final = 3  # the service said no to what was asked
NOT_ALLOWED: Final = 4  # no key, or one that may not
UNAVAILABLE: Final = 5  # no answer, or none now

Place = Callable[[str], str]  # of a JSON pointer, for people


class Failed(Exception):
    """What is wrong, in one line."""

    def __init__(self, line: str, exit_code: int = FAILED) -> None:
        super().__init__(line)
        self.exit_code = exit_code


@contextmanager
def one_line() -> Iterator[None]:
    """Expected errors become one line on stderr and an exit code."""
    try:
        yield
    except (Failed, MillraceError, TimeoutError) as error:
        failed = failure_of(error) if isinstance(error, MillraceError) else error
        typer.echo(f"millrace: {printable(str(failed))}", err=True)
        raise typer.Exit(failed.exit_code if isinstance(failed, Failed) else FAILED) from None


def failure_of(error: MillraceError, place: Place = str) -> Failed:
    """The line of an error: code, detail, and each place in what was sent."""
    if isinstance(error, ApiError):
        return Failed(_problem(error, place), _exit_code(error))
    return Failed(str(error), UNAVAILABLE if isinstance(error, NoAnswer) else FAILED)


def in_words(faults: list[Fault], place: Place = str) -> str:
    """Each place with what is wrong there."""
    return "; ".join(f"{place(fault.pointer)}: {fault.detail}" for fault in faults)


def _problem(error: ApiError, place: Place) -> str:
    said = f"{error.status} {error.code}".rstrip()
    places = in_words(list(error.faults), place)
    if not places:
        return f"{said}: {error.detail}"
    is_repeated = any(fault.detail in error.detail for fault in error.faults)
    return f"{said}: {places}" if is_repeated else f"{said}: {error.detail} ({places})"


def _exit_code(error: ApiError) -> int:
    if isinstance(error, NotAuthenticatedError | PermissionDeniedError):
        return NOT_ALLOWED
    is_away = isinstance(error, UnavailableError | ServerError | TooManyRequestsError)
    return UNAVAILABLE if is_away else REFUSED

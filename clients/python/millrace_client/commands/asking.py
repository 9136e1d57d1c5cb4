"""What all commands that ask a service share: its address and key, how results are shown, and what goes wrong.

`command` makes a command of a function of `Asked` and options of its own.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeVar

import typer

from millrace_client.clients import Client
from millrace_client.commands.contexts import Target, target
from millrace_client.commands.failures import Failed, one_line
from millrace_client.commands.printing import Column, Output, print_json, print_members, print_table
from millrace_client.errors import MillraceError, NoAnswer
from millrace_client.exchanges import Retries

F = TypeVar("F", bound=Callable[..., None])

PATIENCE: Final = Retries(limit_s=2.0)  # people see that nothing comes; programs try again by the exit code
COMPLETION_S: Final = 1.0
PANEL: Final = "Service and output"

Shown = Annotated[
    Output, typer.Option("--output", "-o", help="A table for people, JSON for programs.", rich_help_panel=PANEL)
]


def _common(
    url: Annotated[
        str | None,
        typer.Option(
            envvar="MILLRACE_URL", help="Where the service is.", show_default="the context's", rich_help_panel=PANEL
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            envvar="MILLRACE_API_KEY", help="Others see it in `ps`: rather the variable.", rich_help_panel=PANEL
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="One of `millrace context list`.", rich_help_panel=PANEL)] = None,
    output: Shown = Output.TABLE,
) -> None:
    """The options that all commands have."""


COMMON: Final = tuple(
    each.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    for each in inspect.signature(_common, eval_str=True).parameters.values()
)


@dataclass(frozen=True, slots=True)
class Asked:
    """The service that a command asks, and how it shows what it gets."""

    client: Client
    target: Target
    output: Output

    @property
    def is_json(self) -> bool:
        return self.output is Output.JSON

    def show_list(self, items: Iterable[Any], columns: Sequence[Column]) -> None:
        """Items as a table or as an array."""
        if self.is_json:
            print_json(list(items))
        else:
            print_table(items, columns)

    def show(self, item: Mapping[str, Any], members: Mapping[str, str]) -> None:
        """One item: all of it as JSON, or some of it for people."""
        if self.is_json:
            print_json(item)
        else:
            print_members(members)

    def done(self, item: Mapping[str, Any], line: str) -> None:
        """What was done: the item as JSON, or a line for people."""
        if self.is_json:
            print_json(item)
        else:
            typer.echo(line)


def command(app: typer.Typer, name: str) -> Callable[[F], F]:
    """Add a function to an app; its options are those behind its first parameter, and the common ones."""

    def register(function: F) -> F:
        own = list(inspect.signature(function, eval_str=True).parameters.values())[1:]

        def run(**given: Any) -> None:
            url, key, context, output = (given.pop(each.name) for each in COMMON)
            with one_line():
                found = target(url, key, context)
                with Client(found.url, found.key, retries=PATIENCE) as client, _naming(found):
                    function(Asked(client, found, output), **given)

        parameters = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own]
        functools.update_wrapper(run, function, assigned=("__doc__", "__module__", "__name__"))
        run.__annotations__ = {each.name: each.annotation for each in (*parameters, *COMMON)}
        setattr(run, "__signature__", inspect.Signature([*parameters, *COMMON]))  # noqa: B010  mypy knows no such member
        app.command(name)(run)
        return function

    return register


@contextmanager
def _naming(found: Target) -> Iterator[None]:
    """Say which service did not answer."""
    try:
        yield
    except NoAnswer as error:
        raise NoAnswer(f"no answer from {found.url}: {error}") from error


def completed(collection: str) -> Callable[[str], list[str]]:
    """The names in a collection that begin so, for the shell; none where the service does not say them at once."""

    def names(incomplete: str) -> list[str]:
        try:
            found = target(os.environ.get("MILLRACE_URL"), os.environ.get("MILLRACE_API_KEY"), None)
            with Client(found.url, found.key, timeout_s=COMPLETION_S, retries=Retries(limit_s=0)) as client:
                listed = client.call("GET", f"/v1/{collection}", query={"limit": 1_000})["items"]
        except (Failed, MillraceError):
            return []
        return [each["name"] for each in listed if each["name"].startswith(incomplete)]

    return names


StreamName = Annotated[str, typer.Argument(metavar="STREAM", autocompletion=completed("streams"))]
JobName = Annotated[str, typer.Argument(metavar="JOB", autocompletion=completed("jobs"))]
StoreName = Annotated[str, typer.Argument(metavar="STORE", autocompletion=completed("stores"))]
Confirmed = Annotated[bool, typer.Option("--yes", "-y", help="Ask no question.")]


def confirm(question: str, is_confirmed: bool) -> None:
    """Ask, unless that was said; no answer is a no."""
    if not is_confirmed:
        typer.confirm(question, abort=True, err=True)

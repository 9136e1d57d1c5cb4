"""Contexts: listed, chosen, set."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from millrace_client.commands.asking import Shown
from millrace_client.commands.contexts import Context, checked_url, config_path, read, write
from millrace_client.commands.failures import Failed, one_line
from millrace_client.commands.printing import NONE, Column, Output, print_json, print_table

app = typer.Typer(help="Where services are: list, use, set.", no_args_is_help=True)

COLUMNS = (
    Column("current", lambda each: "*" if each["is_current"] else ""),
    Column("name", lambda each: each["name"]),
    Column("url", lambda each: each["url"]),
    Column("key", lambda each: each["key"] or NONE),
)


def _names(incomplete: str) -> list[str]:
    try:
        return [name for name in read(config_path()).by_name if name.startswith(incomplete)]
    except Failed:
        return []


Name = Annotated[str, typer.Argument(metavar="NAME", autocompletion=_names)]


@app.command("list")
def list_contexts(output: Shown = Output.TABLE) -> None:
    """List contexts; keys are not shown."""
    with one_line():
        contexts = read(config_path())
    items = [
        {"name": name, "url": each.url, "key": _key(each), "is_current": name == contexts.current}
        for name, each in contexts.by_name.items()
    ]
    if output is Output.JSON:
        print_json(items)
    else:
        print_table(items, COLUMNS)


def _key(context: Context) -> str | None:
    return f"${context.api_key_env}" if context.api_key_env else "in the file" if context.api_key else None


@app.command("use")
def use_context(name: Name) -> None:
    """Have a context count where none is named."""
    with one_line():
        contexts = read(config_path())
        contexts.named(name)
        contexts.current = name
        write(config_path(), contexts)
    typer.echo(f"context {name} counts from now on")


@app.command("set")
def set_context(
    name: Name,
    url: Annotated[str | None, typer.Option(help="Where the service is.", show_default="as it is")] = None,
    api_key: Annotated[
        str | None, typer.Option(help="The key itself; `-`: it is asked for, or read from standard input.")
    ] = None,
    api_key_env: Annotated[str | None, typer.Option(help="The variable of the environment that has it.")] = None,
) -> None:
    """Make a context or change it; the first one counts at once."""
    with one_line():
        if api_key is not None and api_key_env is not None:
            raise Failed("say either --api-key or --api-key-env", 2)
        contexts = read(config_path())
        present = contexts.by_name.get(name)
        if url is None and present is None:
            raise Failed(f"the context {name!r} is new: say its --url", 2)
        context = replace(present or Context(""), **({} if url is None else {"url": checked_url(url)}))
        if api_key is not None:
            given = typer.prompt("API key", hide_input=True, err=True) if api_key == "-" else api_key
            context = replace(context, api_key=given, api_key_env=None)
        if api_key_env is not None:
            context = replace(context, api_key=None, api_key_env=api_key_env)
        contexts.by_name[name] = context
        contexts.current = contexts.current or name
        write(config_path(), contexts)
    typer.echo(f"context {name} is {context.url}")

"""The commands for people, put together; `millrace` adds them to its own."""

from __future__ import annotations

import typer

from millrace_client.commands import applying, context_commands, jobs, records, stores, streams
from millrace_client.commands.asking import command

app = typer.Typer(pretty_exceptions_enable=False, no_args_is_help=True)
app.add_typer(streams.app, name="stream")
app.add_typer(jobs.app, name="job")
app.add_typer(stores.app, name="store")
app.add_typer(context_commands.app, name="context")
command(app, "tail")(records.tail)
command(app, "post")(records.post)
command(app, "lookup")(stores.lookup)
command(app, "apply")(applying.apply)

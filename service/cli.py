"""The `millrace` command.

Knows its sub-commands and how they say that something is wrong: one line on stderr, exit code 1 (2 for usage).
Refuses to know more: each of them is a few lines over a module that does the work.
"""

import faulthandler
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, NoReturn

import orjson
import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from service.settings import Settings
from service.storage.private import keep_private, private_folder
from service.streams.errors import CatalogUnavailable

# Of millrace_client: they ask a service over HTTP, know nothing of this package, and are loaded when one is asked for.
FOR_PEOPLE = ("stream", "job", "store", "context", "tail", "post", "lookup", "apply")


class WithThoseForPeople(TyperGroup):
    """The commands here, and those of the client where it is installed with what they need."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *(() if _absent("client") else FOR_PEOPLE)]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in FOR_PEOPLE:
            return super().get_command(ctx, cmd_name)
        _need("client")
        from millrace_client.commands.app import app as for_people

        return typer.main.get_group(for_people).get_command(ctx, cmd_name)


app = typer.Typer(
    name="millrace",
    cls=WithThoseForPeople,
    help="Stateful stream operators as a REST service.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
tokens = typer.Typer(help="API keys: make, list, revoke.", no_args_is_help=True)
app.add_typer(tokens, name="token")

NEEDED = {"api": ("fastapi",), "client": ("httpx", "yaml"), "instance": ("pyspark",)}  # modules of each extra
DOCUMENT = Path(__file__).parent.parent / "openapi" / "openapi.json"  # beside it `worker.json`

# None where nothing is given: then the setting of that name says it, from the environment or by its default.
Host = Annotated[
    str | None, typer.Option(help="The address to listen on.", show_default="MILLRACE_HOST, else 127.0.0.1")
]
Port = Annotated[
    int | None, typer.Option(help="The port; 0 takes a free one.", show_default="MILLRACE_PORT, else 8080")
]
DataDir = Annotated[
    Path | None,
    typer.Option(help="Where everything is kept.", show_default="MILLRACE_DATA_DIR, else ./millrace-data"),
]


@app.command()
def up(
    host: Host = None,
    port: Port = None,
    data_dir: DataDir = None,
    instances: Annotated[int, typer.Option(min=0, help="Spark applications to run; 0: the API alone.")] = 1,
    cores: Annotated[
        int | None, typer.Option(min=1, help="Slots that a job may have in each.", show_default="all processors")
    ] = None,
    spark_ui: Annotated[bool, typer.Option("--spark-ui", help="Serve Spark's own pages too, on loopback.")] = False,
) -> None:
    """Run everything here: the API and INSTANCES Spark applications, on SQLite and a local folder."""
    _need("api")
    if instances:
        _need("instance")
    settings = _settings(host=host, port=port, data_dir=data_dir)
    import uvloop

    from service import embedded, logs

    keep_private()
    logs.configure(settings.log_level)
    with _one_line(embedded.DataDirBusy), embedded.data_dir_lock(settings.data_dir.absolute()):

        def announce(url: str) -> None:
            _announce(url)
            if sys.stdout.isatty():  # the code is for who sits there; in a file it would be for who reads that
                print(f"dashboard {embedded.dashboard_link(settings, url)}", flush=True)

        running = embedded.up(settings, instances=instances, cores=cores, has_spark_ui=spark_ui, announce=announce)
        uvloop.run(running)


@app.command()
def api(host: Host = None, port: Port = None) -> None:
    """Run the API alone, on the catalog and storage that MILLRACE_* name."""
    _need("api")
    settings = _settings(host=host, port=port)
    _need_catalog(settings)
    import uvloop

    from service import embedded, logs

    keep_private()
    logs.configure(settings.log_level)
    with _one_line(embedded.CatalogNotCurrent):
        uvloop.run(embedded.serve(settings, announce=_announce))


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def instance(
    context: typer.Context,
    api: Annotated[list[str], typer.Option("--api", help="Where the API is reached; several: repeated, or by commas.")],
    spark_master: Annotated[str | None, typer.Option(help="As in spark-submit; default MILLRACE_SPARK_MASTER.")] = None,
) -> None:
    """Attach a Spark application to the API; it runs jobs until SIGTERM.

    It also takes --name, --cores, --replica-dir and --spark-ui, and reads MILLRACE_API_KEY: see docs/settings.md.
    """
    _need("instance")
    master = spark_master or _settings().spark_master
    if not master:
        _fail("say where Spark is: --spark-master, or MILLRACE_SPARK_MASTER")
    command = [
        sys.executable,
        "-m",
        "spark_jobs.instance",
        "--api",
        ",".join(api),
        "--spark-master",
        master,
        *context.args,
    ]
    os.execv(sys.executable, command)  # noqa: S606  no shell is wanted: the process becomes the instance


@app.command()
def migrate() -> None:
    """Bring the catalog that MILLRACE_DATABASE_URL names to this version's schema."""
    _need("api")
    from service.catalog import engine

    keep_private()
    settings = _settings()
    if str(settings.data_dir.absolute()) in settings.database_url:
        private_folder(settings.data_dir)
    with _one_line():
        engine.upgrade(settings.database_url)


@app.command()
def openapi(check: Annotated[bool, typer.Option("--check", help="Compare, change nothing.")] = False) -> None:
    """Write openapi/openapi.json and worker.json anew, or check that they are what the routes declare."""
    _need("api")
    from service.api.document import worker_document
    from service.app import create_app

    served = create_app(_settings())
    for path, document in (DOCUMENT, served.openapi()), (DOCUMENT.with_name("worker.json"), worker_document(served)):
        made = as_written(document)
        if not check:
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(made)
        elif not path.exists() or path.read_bytes() != made:
            _fail(f"{path} is not what the routes declare: run `millrace openapi`")


def as_written(document: dict[str, Any]) -> bytes:
    """An OpenAPI document as its file has it."""
    return orjson.dumps(document, option=orjson.OPT_INDENT_2 | orjson.OPT_SORT_KEYS) + b"\n"


@app.command()
def assign(
    decode: Annotated[bool, typer.Option("--decode", help="From hex, a line each, to JSON.")] = False,
    encode: Annotated[bool, typer.Option("--encode", help="From JSON, a line each, to hex.")] = False,
) -> None:
    """Read what a group looks like from stdin, a JSON object a line, and write who should run what, a line each.

    With --decode or --encode: SubscriptionInfo and AssignmentInfo of Kafka Streams, as JSON or in hex.
    """
    from service.assign import decoded, encoded
    from service.assignment_cases import MalformedCase, answer
    from service.streams.assignment.metadata import MalformedMetadata

    if decode and encode:
        _fail("say either --decode or --encode")
    for number, line in enumerate(sys.stdin, 1):
        try:
            if encode:
                print(encoded(orjson.loads(line)), flush=True)
            else:
                print(orjson.dumps(decoded(line) if decode else answer(line)).decode(), flush=True)
        except (MalformedMetadata, MalformedCase, orjson.JSONDecodeError) as error:
            _fail(f"line {number}: {error}")


@tokens.command("create")
def create_token(
    role: Annotated[str, typer.Option(help="reader, writer, admin or instance")],
    name: Annotated[str, typer.Option(help="A name for people.")] = "",
) -> None:
    """Make a key and print it: the only time that it is shown."""
    _need("api")
    from service.auth import ROLES
    from service.catalog import keys

    if role not in ROLES:
        _fail(f"there is no role {role!r}: it is one of {', '.join(ROLES)}")

    def work(s: Any) -> str:
        key, secret = keys.create_key(s, name or role, role)
        _note(s, "create_token", f"tokens/{key.id}", {"role": role, "name": name})
        return secret

    print(_in_catalog("write", work))


@tokens.command("list")
def list_tokens() -> None:
    """Print id, role, name and state of each key."""
    _need("api")
    from service.catalog import keys

    for key in _in_catalog("read", keys.list_keys):
        print(f"{key.id}  {key.role:8}  {'revoked' if key.revoked_at else 'valid':8}  {key.name}")


@tokens.command("revoke")
def revoke_token(token_id: str) -> None:
    """Make a key invalid."""
    _need("api")
    from service.catalog import keys
    from service.streams.errors import UnknownKey

    def work(s: Any) -> None:
        keys.revoke_key(s, token_id)
        _note(s, "revoke_token", f"tokens/{token_id}", None)

    try:
        _in_catalog("write", work)
    except UnknownKey as error:
        _fail(str(error))


def main() -> None:
    """The console script. A process that crashes in compiled code says where each of its threads was."""
    faulthandler.enable()
    app()


def _need(extra: str) -> None:
    """One line where this half of the package was left out of the installation."""
    if absent := _absent(extra):
        _fail(f"{absent[0]} is not installed: pip install 'millrace[{extra}]'")


def _absent(extra: str) -> list[str]:
    return [module for module in NEEDED[extra] if find_spec(module) is None]


@contextmanager
def _one_line(*expected: type[Exception]) -> Iterator[None]:
    """Expected errors, and a database, storage or port out of reach, become one line on stderr."""
    from sqlalchemy.exc import SQLAlchemyError

    faults: tuple[type[Exception], ...] = (CatalogUnavailable, SQLAlchemyError, OSError, *expected)
    try:
        yield
    except faults as error:
        _fail(str(error))


def _note(s: Any, operation: str, resource: str, change: dict[str, str] | None) -> None:
    """In the audit: a command that goes to the catalog itself, so nobody's key is known."""
    from service.catalog import audit

    command = f"millrace token {operation.partition('_')[0]}"
    how: dict[str, Any] = {"operation": operation, "method": "CLI", "path": command, "status": 0, "request_id": ""}
    audit.add_entry(s, key_id="", key_name="command line", role="admin", **how, resource=resource, change=change)


def _in_catalog(verb: str, work: Any, **arguments: Any) -> Any:
    from service.catalog.engine import Catalog

    settings = _settings()
    _need_catalog(settings)
    with _one_line(), closing(Catalog(settings.database_url)) as catalog:
        if not catalog.is_current:
            _fail("the catalog's schema is not this version's: run `millrace migrate`")
        return getattr(catalog, verb)(work, **arguments)


def _need_catalog(settings: Settings) -> None:
    """Say it at once where no catalog was ever made: SQLite would make an empty file, or name a missing folder."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(settings.database_url)
    except ArgumentError:
        _fail(
            "MILLRACE_DATABASE_URL is no database URL: sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
        )
    is_file = url.get_backend_name() == "sqlite" and url.database not in (None, "", ":memory:")
    if is_file and not Path(str(url.database)).exists():
        _fail(f"there is no catalog at {url}: start `millrace up` once, or run `millrace migrate`")


def _settings(**given: Any) -> Settings:
    """The settings; what was given on the command line wins over the environment, and that over the defaults."""
    try:
        return Settings(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        from service.streams.topology.complaints import in_words

        named = [(".".join(map(str, fault["loc"])), in_words(fault)) for fault in error.errors()]
        _fail("; ".join(f"{name}: {words}" if name else words for name, words in named))


def _announce(url: str) -> None:
    print(f"ready {url}", flush=True)


def _fail(line: str) -> NoReturn:
    print(f"millrace: {line.splitlines()[0]}", file=sys.stderr)
    raise typer.Exit(1)


if __name__ == "__main__":
    main()

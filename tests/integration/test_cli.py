"""The other commands: migrate, api, token, openapi; each says in one line what is wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import cli, embedded, logs
from service.catalog import keys
from service.catalog.engine import Catalog
from service.settings import Settings

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def keep_logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets logging up for its process; this process is that of the tests."""
    monkeypatch.setattr(logs, "configure", lambda level: None)


def run(*arguments: str, url: str = "", code: int = 0, **environment: str) -> str:
    """What a command prints; on stderr when it is to fail."""
    result = RUNNER.invoke(cli.app, list(arguments), env={"MILLRACE_DATABASE_URL": url, **environment})
    assert result.exit_code == code, result.output
    return result.stderr if code else result.stdout


def test_migrating_makes_the_catalog_and_again_changes_nothing(empty_database_url: str) -> None:
    run("migrate", url=empty_database_url)
    run("migrate", url=empty_database_url)
    catalog = Catalog(empty_database_url)
    assert catalog.is_current
    catalog.close()


@pytest.mark.parametrize("command", [("api", "--port", "0"), ("token", "list")])
def test_a_catalog_of_another_version_is_not_touched(empty_database_url: str, command: tuple[str, ...]) -> None:
    assert run(*command, url=empty_database_url, code=1).endswith("run `millrace migrate`\n")


def test_a_key_is_made_listed_and_revoked(database_url: str, catalog: Catalog) -> None:
    secret = run("token", "create", "--role", "writer", "--name", "shop", url=database_url).strip()
    listed = run("token", "list", url=database_url)
    assert "writer" in listed
    assert "shop" in listed
    assert secret not in listed
    assert catalog.read(keys.find_key, keys.digest(secret)) is not None
    run("token", "revoke", listed.split()[0], url=database_url)
    assert catalog.read(keys.find_key, keys.digest(secret)) is None
    assert "revoked" in run("token", "list", url=database_url)


def test_what_is_not_there_is_one_line(database_url: str) -> None:
    assert "there is no role 'king'" in run("token", "create", "--role", "king", url=database_url, code=1)
    assert "does not exist" in run("token", "revoke", "nothing", url=database_url, code=1)


@pytest.mark.parametrize(
    "command", [("api", "--port", "0"), ("token", "list"), ("token", "create", "--role", "reader")]
)
def test_where_no_catalog_is_that_is_said_and_nothing_is_made(tmp_path: Path, command: tuple[str, ...]) -> None:
    for folder in (tmp_path, tmp_path / "no" / "such" / "folder"):
        line = run(*command, url=f"sqlite:///{folder}/catalog.db", code=1)
        assert line.startswith(f"millrace: there is no catalog at sqlite:///{folder}/catalog.db: start `millrace up`")
        assert line.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_database_that_is_away_or_is_none_is_one_line() -> None:
    for url in ("postgresql://nobody@127.0.0.1:1/nothing", "nonsense"):
        line = run("token", "list", url=url, code=1)
        assert line.startswith("millrace: ")
        assert line.count("\n") == 1


def test_options_win_over_the_environment_and_that_over_the_defaults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[tuple[str, int, Path]] = []

    async def nothing(settings: Settings, **_: object) -> None:
        found.append((settings.host, settings.port, settings.data_dir))

    monkeypatch.setattr(embedded, "up", nothing)
    monkeypatch.setattr(embedded, "serve", nothing)
    monkeypatch.chdir(tmp_path)
    here = {"MILLRACE_HOST": "127.0.0.2", "MILLRACE_PORT": "9000", "MILLRACE_DATA_DIR": "elsewhere"}
    options = ["--host", "127.0.0.3", "--port", "0"]
    for command, folder in (("up", ["--data-dir", "third"]), ("api", [])):
        for arguments, environment in (([], {}), ([], here), ([*options, *folder], here)):
            run("migrate", **environment)
            run(command, *arguments, **environment)
    defaults, from_environment = ("127.0.0.1", 8080, Path("millrace-data")), ("127.0.0.2", 9000, Path("elsewhere"))
    assert found[:3] == [defaults, from_environment, ("127.0.0.3", 0, Path("third"))]
    assert found[3:] == [defaults, from_environment, ("127.0.0.3", 0, Path("elsewhere"))]


def test_a_setting_of_the_environment_that_is_none_is_one_line() -> None:
    line = run("up", code=1, MILLRACE_PORT="eighty")
    assert line.startswith("millrace: port: ")
    assert line.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "extra"),
    [
        (("up",), "api"),
        (("api",), "api"),
        (("migrate",), "api"),
        (("openapi",), "api"),
        (("token", "list"), "api"),
        (("instance", "--api", "http://127.0.0.1:1"), "instance"),
    ],
)
def test_half_an_installation_says_which_half_a_command_needs(
    command: tuple[str, ...], extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "find_spec", lambda name: None)
    assert run(*command, code=1).endswith(f"is not installed: pip install 'millrace[{extra}]'\n")


def test_an_instance_must_know_where_spark_is() -> None:
    assert "--spark-master" in run("instance", "--api", "http://127.0.0.1:1", code=1)


def test_the_document_is_written_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "DOCUMENT", tmp_path / "openapi" / "openapi.json")
    assert "millrace openapi" in run("openapi", "--check", code=1)
    run("openapi")
    run("openapi", "--check")
    for name in ("worker.json", "openapi.json"):
        (tmp_path / "openapi" / name).write_text("{}")
        assert name in run("openapi", "--check", code=1)


def test_assignments_of_kafka_streams_are_read_and_written() -> None:
    data = "00000007" + "0000000b" + "00112233445566778899aabbccddeeff" + "00000004683a3830" + "00000000"
    there = RUNNER.invoke(cli.app, ["assign", "--decode"], input=f"{data}\n")
    assert there.exit_code == 0, there.output
    back = RUNNER.invoke(cli.app, ["assign", "--encode"], input=there.stdout)
    assert back.stdout == f"{data}\n"
    second = RUNNER.invoke(cli.app, ["assign", "--decode"], input=f"{data}\n{data}00\n")
    assert (second.exit_code, second.stdout) == (1, there.stdout)
    assert second.stderr.startswith("millrace: line 2: this is no subscription (1 bytes are left over)")
    assert RUNNER.invoke(cli.app, ["assign", "--encode"], input="{").exit_code == 1
    assert run("assign", "--decode", "--encode", code=1) == "millrace: say either --decode or --encode\n"


def test_cases_are_answered_line_by_line() -> None:
    case = '{"members":[{"id":"a","slots":1}],"tasks":["0_0"]}\n'
    done = RUNNER.invoke(cli.app, ["assign"], input=case * 2)
    assert (done.exit_code, done.stdout) == (0, '{"active":{"a":["0_0"]},"standby":{"a":[]},"probing":false}\n' * 2)
    refused = RUNNER.invoke(cli.app, ["assign"], input=case + "{}\n")
    assert (refused.exit_code, refused.stdout) == (1, done.stdout[: len(done.stdout) // 2])
    assert refused.stderr.startswith("millrace: line 2: this is no case: Object missing required field `members`")

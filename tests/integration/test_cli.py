"""The other commands: migrate, api, token, openapi; each says in one line what is wrong."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from service import cli, logs
from service.catalog import keys
from service.catalog.engine import Catalog

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def keep_logging_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command sets logging up for its process; this process is that of the tests."""
    monkeypatch.setattr(logs, "configure", lambda level: None)


def run(*arguments: str, url: str = "", code: int = 0) -> str:
    """What a command prints; on stderr when it is to fail."""
    result = RUNNER.invoke(cli.app, list(arguments), env={"MILLRACE_DATABASE_URL": url})
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


def test_a_key_is_made_listed_and_revoked(database_url: str) -> None:
    secret = run("token", "create", "--role", "writer", "--name", "shop", url=database_url).strip()
    listed = run("token", "list", url=database_url)
    assert "writer" in listed
    assert "shop" in listed
    assert secret not in listed
    catalog = Catalog(database_url)
    assert catalog.read(keys.find_key, keys.digest(secret)) is not None
    run("token", "revoke", listed.split()[0], url=database_url)
    assert catalog.read(keys.find_key, keys.digest(secret)) is None
    assert "revoked" in run("token", "list", url=database_url)
    catalog.close()


def test_what_is_not_there_is_one_line(database_url: str) -> None:
    assert "there is no role 'king'" in run("token", "create", "--role", "king", url=database_url, code=1)
    assert "does not exist" in run("token", "revoke", "nothing", url=database_url, code=1)


def test_a_database_that_is_away_is_one_line(tmp_path: Path) -> None:
    line = run("token", "list", url=f"sqlite:///{tmp_path}/no/such/folder/catalog.db", code=1)
    assert line.startswith("millrace: ")
    assert line.count("\n") == 1


def test_an_instance_must_know_where_spark_is() -> None:
    assert "--spark-master" in run("instance", "--api", "http://127.0.0.1:1", code=1)


def test_the_document_is_written_and_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cli, "DOCUMENT", tmp_path / "openapi" / "openapi.json")
    assert "millrace openapi" in run("openapi", "--check", code=1)
    run("openapi")
    run("openapi", "--check")
    cli.DOCUMENT.write_text("{}")
    run("openapi", "--check", code=1)

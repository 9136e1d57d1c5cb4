"""The command line of an instance: what it takes from the environment, and from where nothing else does."""

from __future__ import annotations

from pathlib import Path

import pytest

from spark_jobs.instance import parse

NEEDED = ["--api", "http://127.0.0.1:8080/", "--spark-master", "local[2]"]


def test_key_and_replica_folder_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_API_KEY", "secret")
    monkeypatch.setenv("MILLRACE_REPLICA_DIR", "/fast/disk")
    options = parse(NEEDED)
    assert (options.api_key, options.replica_dir) == ("secret", Path("/fast/disk"))
    assert options.api == "http://127.0.0.1:8080"


def test_an_argument_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_REPLICA_DIR", "/fast/disk")
    assert parse([*NEEDED, "--replica-dir", "/other"]).replica_dir == Path("/other")


def test_the_name_is_stable_without_being_given() -> None:
    assert parse(NEEDED).name == parse(NEEDED).name != ""


def test_the_ui_and_the_watch_on_stdin_are_off_unless_asked_for() -> None:
    options = parse(NEEDED)
    assert not options.has_ui
    assert not options.watches_stdin


def test_how_much_is_logged_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MILLRACE_LOG_LEVEL", raising=False)
    assert parse(NEEDED).log_level == "info"
    monkeypatch.setenv("MILLRACE_LOG_LEVEL", "warning")
    assert parse(NEEDED).log_level == "warning"
    monkeypatch.setenv("MILLRACE_LOG_LEVEL", "loud")
    with pytest.raises(SystemExit):
        parse(NEEDED)
    assert "MILLRACE_LOG_LEVEL is 'loud'" in capsys.readouterr().err


def test_where_the_api_is_must_be_said(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--spark-master", "local[2]"])
    assert "--api" in capsys.readouterr().err


@pytest.mark.parametrize("cores", ["0", "-1", "many"])
def test_an_instance_has_at_least_one_core(cores: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse([*NEEDED, "--cores", cores])
    assert "--cores" in capsys.readouterr().err


def test_a_standalone_cluster_is_joined_with_its_secret_or_openly_without(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    standalone = ["--api", "http://127.0.0.1:8080", "--spark-master", "spark://h:7077"]
    for name in ("MILLRACE_SPARK_SECRET", "MILLRACE_SPARK_AUTH"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(SystemExit):
        parse(standalone)
    assert "MILLRACE_SPARK_SECRET is not set" in capsys.readouterr().err
    assert parse(NEEDED).has_spark_auth  # of a local one nobody needs to know a secret
    monkeypatch.setenv("MILLRACE_SPARK_SECRET", "of the cluster")
    assert parse(standalone).spark_secret == "of the cluster"
    monkeypatch.setenv("MILLRACE_SPARK_AUTH", "off")
    assert not parse(standalone).has_spark_auth
    assert parse(standalone).spark_secret is None
    monkeypatch.setenv("MILLRACE_SPARK_AUTH", "maybe")
    with pytest.raises(SystemExit):
        parse(standalone)
    assert "MILLRACE_SPARK_AUTH is 'maybe'" in capsys.readouterr().err


def test_no_secret_is_shown_with_the_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_API_KEY", "hunter2")
    monkeypatch.setenv("MILLRACE_SPARK_SECRET", "hunter3")
    assert "hunter" not in repr(parse(NEEDED))


def test_how_long_spark_may_be_away_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("MILLRACE_SPARK_PATIENCE_MS", raising=False)
    assert parse(NEEDED).spark_patience_s == 30.0
    monkeypatch.setenv("MILLRACE_SPARK_PATIENCE_MS", "1500")
    assert parse(NEEDED).spark_patience_s == 1.5
    for wrong in ("0", "-5", "soon"):
        monkeypatch.setenv("MILLRACE_SPARK_PATIENCE_MS", wrong)
        with pytest.raises(SystemExit):
            parse(NEEDED)
        assert f"MILLRACE_SPARK_PATIENCE_MS is {wrong!r}" in capsys.readouterr().err


def test_the_api_may_be_several_processes() -> None:
    more = ["--api", "http://b:1, http://c:2/", "--spark-master", "local[2]"]
    assert parse(["--api", "http://a:0/", *more]).api == "http://a:0,http://b:1,http://c:2"

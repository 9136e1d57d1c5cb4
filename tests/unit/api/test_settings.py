"""Settings: the environment, its defaults, and the door that stays shut."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings, is_loopback


def test_everything_lies_in_the_data_directory_unless_said_otherwise(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/catalog.db"
    assert settings.storage_uri == f"{tmp_path}/storage"
    assert settings.replica_dir == tmp_path / "replicas"


def test_the_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLRACE_DATABASE_URL", "postgresql://db/millrace")
    monkeypatch.setenv("MILLRACE_MAX_BODY_BYTES", "1000")
    monkeypatch.setenv("MILLRACE_REDIS_URL", "")
    settings = Settings()
    assert settings.database_url == "postgresql://db/millrace"
    assert settings.max_body_bytes == 1000
    assert settings.redis_url is None


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::", "example.org"])
def test_auth_off_is_refused_where_others_can_reach_it(host: str) -> None:
    with pytest.raises(ValidationError, match="AUTH=off is refused"):
        Settings(auth="off", host=host)


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"database_url": "nonsense"}, "MILLRACE_DATABASE_URL is no database URL"),
        ({"redis_url": "http://cache"}, "MILLRACE_REDIS_URL is no URL of Redis"),
        ({"data_dir": __file__}, "--data-dir"),
        ({"auth": "off", "host": "example.org"}, "MILLRACE_AUTH=off"),
    ],
)
def test_what_is_wrong_is_said_by_the_name_that_it_is_set_with(setting: dict[str, str], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Settings(**setting)  # type: ignore[arg-type]
    [fault] = caught.value.errors()
    assert words in fault["msg"]
    assert "Value error" not in fault["msg"]


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "localhost", "::1", "[::1]"])
def test_auth_off_is_taken_on_loopback(host: str) -> None:
    assert is_loopback(host)
    assert Settings(auth="off", host=host).auth == "off"


def test_the_admin_key_does_not_show_in_a_printed_setting() -> None:
    assert "hunter2" not in repr(Settings(api_key="hunter2"))

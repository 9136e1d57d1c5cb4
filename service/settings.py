"""What a deployment may decide: every `MILLRACE_*` variable, its default and its limits.

Knows the environment and is its only reader in `service` (fault points of the kill tests apart). Refuses to know what
the values are used for: whoever needs one gets it from `create_app(settings)` or from the command line.
"""

import ipaddress
import re
from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """One process's settings; durations in ms, sizes in bytes. Explicit arguments win over the environment."""

    model_config = SettingsConfigDict(env_prefix="MILLRACE_", env_ignore_empty=True, extra="ignore")

    data_dir: Path = Path("millrace-data")
    database_url: str = ""  # empty: a SQLite file in data_dir
    storage_uri: str = ""  # empty: a folder in data_dir
    replica_dir: Path | None = None  # None: a folder in data_dir
    redis_url: str | None = None  # None: lookups read replicas here
    spark_master: str | None = None

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    auth: Literal["on", "off"] = "on"
    api_key: SecretStr | None = None  # `api`, `up`: the admin key to install; `instance`: the key to present
    session_ms: int = Field(default=43_200_000, ge=1_000)  # of who signed in to the dashboard
    public_url: str = ""  # where people reach the dashboard, if something stands in front
    secret_key: SecretStr | None = None  # seals secrets of webhooks; None: a file in data_dir
    webhook_private_addresses: Literal["on", "off"] = "off"
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    max_body_bytes: int = Field(default=64 << 20, gt=0)  # decoded bytes of one POST of records
    max_json_bytes: int = Field(default=16 << 20, gt=0)  # decoded bytes of any other request
    ingest_group_bytes: int = Field(default=32 << 20, gt=0)
    ingest_buffer_bytes: int = Field(default=256 << 20, gt=0)  # bodies that are not answered yet; more is a 429
    ingest_key_bytes: int = Field(default=128 << 20, gt=0)  # the same of one key
    max_connections: int = Field(default=1_000, ge=1)  # open at once; beyond, the longest idle one makes room
    max_tail_filters: int = Field(default=16, ge=1)  # conditions of tails that are evaluated, a process each
    max_event_streams: int = Field(default=100, ge=1)  # of a key, in one process
    header_timeout_ms: int = Field(default=10_000, ge=100)
    body_timeout_ms: int = Field(default=10_000, ge=100)  # each so many ms of it bring min_body_rate bytes a second
    min_body_rate: int = Field(default=1_024, ge=1)
    idle_timeout_ms: int = Field(default=75_000, ge=100)  # between requests; also of a caller who does not read
    min_free_bytes: int = Field(default=256 << 20, ge=0)  # of the storage's device; less is not ready
    lease_ms: int = Field(default=3_000, ge=1_000)
    max_busy_ms: int = Field(default=10_000, ge=6_000)  # more than expressions may take, see expressions.session
    tick_ms: int = Field(default=250, ge=50)
    initial_rebalance_delay_ms: int = Field(default=1_000, ge=0)  # how long a job's first slot waits for the others
    scale_down_timeout_ms: int = Field(default=60_000, ge=0)  # how long tasks of a leaving instance may wait for copies
    collect_every_ms: int = Field(default=60_000, ge=100)
    sample_every_ms: int = Field(default=10_000, ge=100, le=60_000)
    delete_delay_ms: int = Field(default=3_600_000, ge=0)
    pending_ttl_ms: int = Field(default=3_600_000, ge=1_000)
    key_cache_ms: int = Field(default=1_000, ge=0)  # how long another process's revocation may go unseen
    audit_retention_ms: int = Field(default=7_776_000_000, ge=60_000)  # how long it is known who changed what
    audit_entries: int = Field(default=100_000, ge=1)  # of more the oldest go
    drain_timeout_ms: int = Field(default=20_000, ge=0)

    @field_validator("database_url")
    @classmethod
    def _is_a_database(cls, url: str) -> str:
        if url and not re.match(r"(sqlite|postgresql)(\+\w+)?://", url):
            forms = "sqlite:///FILE or postgresql+psycopg://USER:PASSWORD@HOST/NAME"
            raise _wrong(f"MILLRACE_DATABASE_URL is no database URL: {forms}")
        return url

    @field_validator("redis_url")
    @classmethod
    def _is_redis(cls, url: str | None) -> str | None:
        if url is not None and not re.match("(redis|rediss|unix)://", url):
            raise _wrong("MILLRACE_REDIS_URL is no URL of Redis: redis://HOST:PORT/0, rediss:// or unix://")
        return url

    @field_validator("public_url")
    @classmethod
    def _is_an_origin(cls, url: str) -> str:
        origin = url.rstrip("/").lower()
        if origin and not re.fullmatch(r"https?://[^/?#@\s]+", origin):
            raise _wrong("MILLRACE_PUBLIC_URL is no address alone: https://HOST or https://HOST:PORT")
        return origin

    @field_validator("secret_key")
    @classmethod
    def _is_a_sealing_key(cls, key: SecretStr | None) -> SecretStr | None:
        if key is not None and not re.fullmatch(r"[A-Za-z0-9_-]{43}=", key.get_secret_value()):
            raise _wrong("MILLRACE_SECRET_KEY is no key: 32 random bytes in URL-safe base64")
        return key

    @field_validator("data_dir")
    @classmethod
    def _is_a_folder(cls, folder: Path) -> Path:
        if folder.exists() and not folder.is_dir():
            raise _wrong(f"{folder} is no folder: say another with --data-dir or MILLRACE_DATA_DIR")
        return folder

    @model_validator(mode="after")
    def _fill_from_data_dir(self) -> "Settings":
        folder = self.data_dir.absolute()
        self.database_url = self.database_url or f"sqlite:///{folder / 'catalog.db'}"
        self.storage_uri = self.storage_uri or str(folder / "storage")
        self.replica_dir = self.replica_dir or folder / "replicas"
        return self

    @model_validator(mode="after")
    def _no_open_door(self) -> "Settings":
        if self.auth == "off" and not is_loopback(self.host):
            raise _wrong(f"MILLRACE_AUTH=off is refused on {self.host}: only a loopback address may go without")
        return self


def _wrong(detail: str) -> PydanticCustomError:
    """A finding whose words go to the person as they are."""
    return PydanticCustomError("millrace", "{detail}", {"detail": detail})


def is_loopback(host: str) -> bool:
    """Whether an address to bind can be reached from this machine alone."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False

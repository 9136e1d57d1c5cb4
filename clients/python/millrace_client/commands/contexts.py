"""Where services are and with which key they are asked: named contexts in a file for its owner alone.

    current = "shop"

    [contexts.shop]
    url = "https://millrace.shop.example"
    api_key_env = "SHOP_KEY"      # or api_key = "…"

An option wins over the environment, that over the context. The key of a context goes to the URL of that context only.
"""

from __future__ import annotations

import json
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from millrace_client.clients import DEFAULT_URL
from millrace_client.commands.failures import Failed

MEMBERS: Final = {"url", "api_key", "api_key_env"}


@dataclass(frozen=True, slots=True)
class Context:
    """A service; its key, or the variable of the environment that has it, or neither."""

    url: str
    api_key: str | None = None
    api_key_env: str | None = None

    def key(self) -> str | None:
        """The key. Raises Failed where the variable is not set."""
        if self.api_key_env is None:
            return self.api_key
        if not (key := os.environ.get(self.api_key_env)):
            raise Failed(f"the context takes its key from {self.api_key_env}, which is not set")
        return key


@dataclass(slots=True)
class Contexts:
    """All contexts, and which of them counts where none is named."""

    current: str | None = None
    by_name: dict[str, Context] = field(default_factory=dict)

    def named(self, name: str) -> Context:
        """The context of a name. Raises Failed."""
        if name not in self.by_name:
            raise Failed(
                f"there is no context {name!r}: {', '.join(sorted(self.by_name)) or 'none'} in {config_path()}"
            )
        return self.by_name[name]


@dataclass(frozen=True, slots=True)
class Target:
    """The service that is asked."""

    url: str
    key: str | None


def target(url: str | None, key: str | None, context: str | None) -> Target:
    """The service for what an option or the environment gives. Raises Failed."""
    contexts = read(config_path())
    name = context or contexts.current
    found = contexts.named(name) if name is not None else Context(DEFAULT_URL)
    if url is not None and url.rstrip("/") != found.url.rstrip("/"):
        found = Context(url)
    chosen = Target(checked_url(found.url), key or found.key())
    if chosen.key is not None and not (chosen.key.isascii() and chosen.key.isprintable()):
        raise Failed("the API key is not printable ASCII")
    return chosen


def checked_url(url: str) -> str:
    """The URL. Raises Failed where it is none of a service."""
    try:
        parts = urlsplit(url)
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0 and url.isprintable()
    except ValueError:
        is_url = False
    if not is_url:
        raise Failed(f"{url!r} is no URL of a service: http://HOST:PORT or https://HOST")
    return url


# ---------------------------------------------------------------- the file


def config_path() -> Path:
    """MILLRACE_CONFIG, else millrace/config.toml where the user's configuration is."""
    if named := os.environ.get("MILLRACE_CONFIG"):
        return Path(named)
    home = os.environ.get("XDG_CONFIG_HOME")
    return (Path(home) if home else Path.home() / ".config") / "millrace" / "config.toml"


def read(path: Path) -> Contexts:
    """The contexts of a file, none where there is no file. Raises Failed."""
    try:
        text = path.read_text(encoding="utf-8")
        may_be_read_by_others = path.stat().st_mode & 0o077 != 0
    except FileNotFoundError:
        return Contexts()
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{path} can not be read: {error}") from None
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise Failed(f"{path} is no TOML: {error}") from None
    contexts = _contexts(data, path)
    if may_be_read_by_others and any(context.api_key for context in contexts.by_name.values()):
        raise Failed(f"{path} has a key in it and can be read by others: chmod 600 {path}")
    return contexts


def _contexts(data: Mapping[str, Any], path: Path) -> Contexts:
    unknown = set(data) - {"current", "contexts"}
    listed = data.get("contexts", {})
    if unknown or not isinstance(listed, dict):
        raise Failed(
            f"{path} has other members than `current` and tables `contexts.NAME`: {', '.join(sorted(unknown))}"
        )
    found = Contexts(data.get("current"), {name: _context(name, each, path) for name, each in listed.items()})
    if found.current is not None and not isinstance(found.current, str):
        raise Failed(f"{path}: `current` is no name")
    return found


def _context(name: str, data: object, path: Path) -> Context:
    is_table = isinstance(data, dict) and {"url"} <= set(data) <= MEMBERS
    if not isinstance(data, dict) or not is_table or not all(isinstance(value, str) for value in data.values()):
        raise Failed(
            f"{path}: the context {name!r} has `url`, and may have `api_key` or `api_key_env`, all of them texts"
        )
    return Context(**data)


def write(path: Path, contexts: Contexts) -> None:
    """Replace the file, for its owner alone. Raises Failed."""
    lines = [] if contexts.current is None else [f"current = {_text(contexts.current)}"]
    for name, context in contexts.by_name.items():
        members = {member: value for member, value in asdict(context).items() if value is not None}
        lines += ["", f"[contexts.{_text(name)}]", *(f"{member} = {_text(value)}" for member, value in members.items())]
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, encoding="utf-8", delete=False) as file:
            file.write("\n".join([*lines, ""]))  # its mode is 0600 from its first moment on
        Path(file.name).replace(path)
    except OSError as error:
        raise Failed(f"{path} can not be written: {error}") from None


def _text(value: str) -> str:
    """A basic string of TOML, which escapes as JSON does."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

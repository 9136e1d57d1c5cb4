"""What is different between two JSON values, member by member; elements that have names are compared by them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from millrace_client.commands.printing import compact


class Difference(NamedTuple):
    """One place; `sign`: `+` it is new, `-` it goes, `~` it is another."""

    sign: str
    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        if self.sign == "~":
            return f"~ {self.path}: {compact(self.before)} → {compact(self.after)}"
        return f"{self.sign} {self.path}: {compact(self.after if self.sign == '+' else self.before)}"


def differences(before: Any, after: Any, path: str = "") -> Iterator[Difference]:
    """Those between two values, in the order of the members of the former, then what is new."""
    if _text(before) == _text(after):  # Python's 1 is its True
        return
    was, now = _members(before), _members(after)
    if was is None or now is None:
        yield Difference("~", path or ".", before, after)
        return
    for name in [*was, *(name for name in now if name not in was)]:
        below = f"{path}.{name}" if path else name
        if name not in now:
            yield Difference("-", below, was[name], None)
        elif name not in was:
            yield Difference("+", below, None, now[name])
        else:
            yield from differences(was[name], now[name], below)
    if [name for name in was if name in now] != [name for name in now if name in was] and isinstance(before, list):
        yield Difference("~", f"{path} (order)", list(was), list(now))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _members(value: Any) -> dict[str, Any] | None:
    """The members of an object, or of an array of objects that each have a name of their own."""
    if isinstance(value, dict):
        return value
    if not isinstance(value, list) or not all(isinstance(each, dict) for each in value):
        return None
    names = [each.get("name") for each in value]
    is_named = all(isinstance(name, str) for name in names) and len(set(names)) == len(names)
    return dict(zip(names, value, strict=True)) if is_named else {str(n): each for n, each in enumerate(value)}

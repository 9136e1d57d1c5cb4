"""Files of streams and jobs, as YAML or JSON, and on which line each part of them stands.

    streams: [{name: clicks, partitions: 2}]
    jobs: [{name: visits, source: clicks, operators: […]}]

The members are those of the bodies of `POST /v1/streams` and `POST /v1/jobs`. A file may have several such documents.
YAML is read as JSON would be: no dates, no octal numbers; `yes` and `on` are texts; a name stands once in a mapping.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from millrace_client.commands.failures import Failed

STDIN: Final = "-"
LISTS: Final = ("streams", "jobs")

# Tag → what a plain scalar looks like that has it, and its first characters.
SCALARS: Final = {
    "bool": (r"(?:true|false)$", "tf"),
    "null": (r"(?:null|~|)$", ["n", "~", ""]),
    "int": (r"-?(?:0|[1-9][0-9]*)$", "-0123456789"),
    "float": (r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$", "-0123456789"),
}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # yaml carries no types
    """YAML with the scalars of JSON."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012  filled in below, as its base class does


for _tag, (_form, _first) in SCALARS.items():
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(_form), list(_first))


@dataclass(frozen=True, slots=True)
class Document:
    """A document of a file. `lines`: JSON pointer → line, from 1; empty for JSON."""

    file: str
    body: Any
    lines: Mapping[str, int] = field(default_factory=dict)

    def place(self, pointer: str) -> str:
        """Where a pointer leads, for people; the line of what is around it, where it leads to something absent."""
        around = pointer
        while around and around not in self.lines:
            around = around.rpartition("/")[0]
        line = self.lines.get(around)
        place = self.file if line is None else f"{self.file}:{line}"
        return f"{place} {pointer}" if pointer else place


@dataclass(frozen=True, slots=True)
class Declared:
    """A stream or job that a file has. `pointer`: where in its document."""

    name: str
    body: dict[str, Any]
    document: Document
    pointer: str

    def place(self, pointer: str) -> str:
        """Where a pointer into the body leads, for people."""
        return self.document.place(self.pointer + pointer)


@dataclass(frozen=True, slots=True)
class Manifest:
    """What a file declares, in its order."""

    streams: list[Declared]
    jobs: list[Declared]


def read_manifest(file: Path) -> Manifest:
    """The streams and jobs of a file. Raises Failed."""
    found: dict[str, list[Declared]] = {name: [] for name in LISTS}
    for document in read_documents(file):
        body = document.body
        if not isinstance(body, dict) or not body.keys() <= set(LISTS):
            unknown = next((name for name in body if name not in LISTS), "") if isinstance(body, dict) else ""
            place = document.place(f"/{_escaped(unknown)}" if unknown else "")
            raise Failed(f"{place}: a document has the members `streams` and `jobs`, both lists, and no other")
        for name, listed in body.items():
            found[name] += _declared(document, name, listed)
    for each in found.values():
        _check_names(each)
    return Manifest(found["streams"], found["jobs"])


def _declared(document: Document, member: str, listed: Any) -> Iterator[Declared]:
    if not isinstance(listed, list):
        raise Failed(f"{document.place(f'/{member}')}: is no list")
    for n, body in enumerate(listed):
        pointer = f"/{member}/{n}"
        if not isinstance(body, dict) or not isinstance(body.get("name"), str):
            raise Failed(f"{document.place(pointer)}: has no `name`")
        yield Declared(body["name"], body, document, pointer)


def _check_names(declared: list[Declared]) -> None:
    seen: dict[str, Declared] = {}
    for each in declared:
        if each.name in seen:
            raise Failed(f"{each.place('/name')}: {each.name!r} was declared already, at {seen[each.name].place('')}")
        seen[each.name] = each


# ---------------------------------------------------------------- documents


def read_document(file: Path) -> Document:
    """The only document of a file. Raises Failed."""
    found = read_documents(file)
    if len(found) != 1:
        raise Failed(f"{_name(file)}: has {len(found)} documents, not one")
    return found[0]


def read_documents(file: Path) -> list[Document]:
    """The documents of a file, `-` being standard input. Raises Failed."""
    name = _name(file)
    try:
        text = sys.stdin.read() if str(file) == STDIN else file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise Failed(f"{name} can not be read: {error}") from None
    try:
        return [Document(name, json.loads(text))]
    except ValueError:
        pass  # YAML takes nearly all JSON and has lines; what it does not take are tabs
    try:
        return list(_documents(name, _Loader(text)))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        raise Failed(f"{name}{line}: {error.problem or error.context}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise Failed(f"{name}: is no YAML: {error}".splitlines()[0]) from None


def _documents(name: str, loader: _Loader) -> Iterator[Document]:
    while loader.check_node():
        node = loader.get_node()
        lines = dict(_lines(name, node, "", ()))
        body = loader.construct_document(node)
        if body is not None:
            yield Document(name, body, lines)


def _lines(name: str, node: yaml.Node, pointer: str, around: tuple[yaml.Node, ...]) -> Iterator[tuple[str, int]]:
    """Pointer → line of a node and of all in it. Raises Failed where a name stands twice, or something holds itself."""
    line = node.start_mark.line + 1
    if node in around:
        raise Failed(f"{name}:{line}: holds itself")
    yield pointer, line
    if isinstance(node, yaml.SequenceNode):
        for n, each in enumerate(node.value):
            yield from _lines(name, each, f"{pointer}/{n}", (*around, node))
    elif isinstance(node, yaml.MappingNode):
        seen = set()
        for key, value in node.value:
            member, at = str(key.value), key.start_mark.line + 1
            if member in seen or not isinstance(key, yaml.ScalarNode):
                raise Failed(f"{name}:{at}: the name {member!r} stands there twice, or is none")
            seen.add(member)
            below = f"{pointer}/{_escaped(member)}"
            yield from _lines(name, value, below, (*around, node))
            yield below, at


def _escaped(member: str) -> str:
    return member.replace("~", "~0").replace("/", "~1")


def _name(file: Path) -> str:
    return "standard input" if str(file) == STDIN else str(file)

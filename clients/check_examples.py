"""Has a generated Python client read each example of the OpenAPI document and write it again: nothing may be lost.

`FOLDER PACKAGE [--fills-in]`: where the package is, and whether it may also write defaults and leave nulls out, as that
of OpenAPI Generator does. Times may be written otherwise. Every module is imported first. Prints how many examples.
"""

import importlib
import json
import operator
import pkgutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

DOCUMENT = Path(__file__).parents[1] / "openapi" / "openapi.json"


def main(folder: str, name_of_package: str, fills_in: str = "") -> None:
    """Exits 1 with what was lost."""
    sys.path.insert(0, folder)
    package = importlib.import_module(name_of_package)
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    models = importlib.import_module(f"{name_of_package}.models")
    document = json.loads(DOCUMENT.read_bytes())
    is_kept = _is_held if fills_in else operator.eq
    lost, count = [], 0
    for operation, name, example in _examples(document):
        written = getattr(models, name).from_dict(example).to_dict()
        count += 1
        if not is_kept(_plain(example), _plain(written)):
            now, before = json.dumps(written, default=str), json.dumps(example)
            lost.append(f"{operation}: {name} is written as {now}, was {before}")
    if lost:
        sys.exit("\n".join(lost))
    sys.stdout.write(f"{count} examples read and written\n")


def _examples(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Operation, model and example of each body and each good answer that is one model."""
    for item in document["paths"].values():
        for operation in item.values():
            good = [answer for status, answer in operation["responses"].items() if status < "300"]
            for place in (operation.get("requestBody", {}), *good):
                media = place.get("content", {}).get("application/json", {"schema": {}})
                if "$ref" in media["schema"]:
                    yield operation["operationId"], media["schema"]["$ref"].rpartition("/")[2], media["example"]


def _is_held(example: Any, written: Any) -> bool:
    """Whether the one holds all that the other has, but for nulls."""
    if isinstance(example, dict) and isinstance(written, dict):
        return all(_is_held(each, written.get(name)) for name, each in example.items())
    if isinstance(example, list) and isinstance(written, list):
        return len(example) == len(written) and all(map(_is_held, example, written))
    return bool(example == written)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_plain(each) for each in value]
    return _moment(value) if isinstance(value, str) else value


def _moment(text: str) -> object:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text


if __name__ == "__main__":
    main(*sys.argv[1:])

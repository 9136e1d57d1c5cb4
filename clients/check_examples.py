"""Has the generated Python client read each example of the OpenAPI document and write it again: nothing may be lost.

Times may be written otherwise. Every module is imported first. Prints how many examples there were.
"""

import importlib
import json
import pkgutil
import sys
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "python"))


def main() -> None:
    """Exits 1 with what was lost."""
    package = importlib.import_module("millrace_client.generated")
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        importlib.import_module(module.name)
    models = importlib.import_module("millrace_client.generated.models")
    document = json.loads((HERE.parent / "openapi" / "openapi.json").read_bytes())
    lost, count = [], 0
    for operation, name, example in _examples(document):
        written = getattr(models, name).from_dict(example).to_dict()
        count += 1
        if _plain(written) != _plain(example):
            lost.append(f"{operation}: {name} is written as {json.dumps(written)}, was {json.dumps(example)}")
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
    main()

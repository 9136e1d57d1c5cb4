"""The OpenAPI document as the Python generator takes it: bodies that are no JSON are bytes, whatever their text is.

Otherwise it reads the text of Server-Sent Events as one object, and writes NDJSON as an upload of files.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PLAIN = {"type": "string", "format": "binary"}
TEXTS = {"application/x-ndjson", "text/event-stream"}


def main(path: str) -> None:
    """Writes it to standard output."""
    document = json.loads(Path(path).read_bytes())
    for contents in _contents(document):
        for media_type in TEXTS & contents.keys():
            contents[media_type] = {"schema": PLAIN}
    json.dump(document, sys.stdout)


def _contents(document: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """What each body and each answer is of."""
    for item in document["paths"].values():
        for operation in item.values():
            for place in (operation.get("requestBody", {}), *operation["responses"].values()):
                yield place.get("content", {})


if __name__ == "__main__":
    main(sys.argv[1])

"""Converters of a column's JSON, as built-in values, into the Struct that it was written from.

It knows when a Struct's fields are to be worked out. It refuses to know any column.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeVar

import msgspec

Kind = TypeVar("Kind", bound=msgspec.Struct)


def converter(kind: type[Kind]) -> Callable[[object], Kind]:
    """What converts built-in values into `kind`; to be made where a module is imported. It raises ValidationError.

    msgspec works out a Struct's fields at its first use, and keeps the outcome with the class before that is complete:
    a second thread that comes to use it meanwhile reads through NULL and takes the process along (0.22.0, where another
    Struct is a field). A decoder works them out too, and modules are imported by one thread.
    """
    msgspec.json.Decoder(kind)
    return partial(msgspec.convert, type=kind)

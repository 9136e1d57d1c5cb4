"""The cluster of an application, as Spark's JVM knows it: which executors there are, and when to look again.

It knows the JVM's objects and py4j. It refuses to know what follows from what it finds (`watch`).

Spark calls a listener of ours through py4j's callback server, whose port, unlike all others, asks nobody for a
secret. So a call only says "look": what happened is read from the JVM, and a stranger's call costs one look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import ClassVar, Final

from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

HEARD: Final = {"onExecutorAdded", "onExecutorRemoved", "onApplicationEnd"}


class Listener:
    """Spark's SparkListenerInterface: `happened` is set when executors come or go; nothing else is of interest."""

    class Java:
        """What py4j implements with it."""

        implements: ClassVar = ["org.apache.spark.scheduler.SparkListenerInterface"]

    def __init__(self) -> None:
        self.happened = threading.Event()

    def __getattr__(self, name: str) -> Callable[..., None]:
        """A method of the interface, whichever this version of Spark has: none is missing, none raises."""
        if not name.startswith("on"):
            raise AttributeError(name)
        return self._hear if name in HEARD else _ignore

    def _hear(self, *_: object) -> None:
        self.happened.set()


def _ignore(*_: object) -> None:
    """What most events are to us."""


def listen(context: SparkContext) -> threading.Event:
    """Have Spark say when executors come or go; the event is set then."""
    listener = Listener()
    ensure_callback_server_started(context._gateway)
    context._jsc.sc().addSparkListener(listener)
    return listener.happened


def executors_of(context: SparkContext) -> frozenset[str]:
    """The ids of the executors that are there; an id is never another's. Raises Py4JError when the JVM ends."""
    return frozenset(context._jsc.sc().schedulerBackend().getExecutorIds().mkString(" ").split())

"""The cluster of an application, as Spark's JVM knows it: its executors, when to look again, whether masters have it.

It knows the JVM's objects and py4j. It refuses to know what follows from what it finds (`watch`).

Spark calls a listener of ours through py4j's callback server, whose port, unlike all others, asks nobody for a
secret. So a call only says "look": what happened is read from the JVM, and a stranger's call costs one look.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Final

import structlog
from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]  # it has no stubs
from pyspark import SparkContext
from pyspark.java_gateway import ensure_callback_server_started

HEARD: Final = {"onExecutorAdded", "onExecutorRemoved", "onApplicationEnd"}
# By itself Spark waits 120 s for who took a connection and died: longer than an instance waits for its masters.
MASTER_ANSWERS_S: Final = 5


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


@dataclass(frozen=True, slots=True)
class Application:
    """What the JVM says of its application: its executors, how many cores they have, and whether Spark has ended it."""

    executors: frozenset[str]
    cores: int
    is_stopped: bool


def look_at(context: SparkContext) -> Application:
    """The application on a cluster, now. Raises Py4JError when the JVM ends."""
    spark = context._jsc.sc()
    if spark.isStopped():
        return Application(frozenset(), 0, is_stopped=True)
    backend = spark.schedulerBackend()
    executors = frozenset(backend.getExecutorIds().mkString(" ").split())
    return Application(executors, int(backend.totalCoreCount()), is_stopped=False)


def ask_masters(context: SparkContext, master: str, app_id: str) -> bool | None:
    """Whether the standalone masters of a URL (`spark://a:7077,b:7077`) have an application; None: none that decides
    answers, for it is away or recovers.

    By Spark's own protocol and secret, as their pages do; waits `MASTER_ANSWERS_S` for each step with each of them.
    """
    jvm, backend = context._jvm, context._jsc.sc().schedulerBackend()
    request = getattr(jvm.org.apache.spark.deploy, "DeployMessages$RequestMasterState$").__getattr__("MODULE$")
    kind = jvm.java.lang.Class.forName("org.apache.spark.deploy.DeployMessages$MasterStateResponse")
    log = structlog.get_logger()
    answer = jvm.scala.reflect.ClassTag.apply(kind)
    limit = jvm.scala.concurrent.duration.FiniteDuration(MASTER_ANSWERS_S, jvm.java.util.concurrent.TimeUnit.SECONDS)
    timeout = jvm.org.apache.spark.rpc.RpcTimeout(limit, "millrace's question to a master")
    for address in master.removeprefix("spark://").split(","):
        host, _, port = address.rpartition(":")
        try:
            at = jvm.org.apache.spark.rpc.RpcAddress(host, int(port))
            uri = jvm.org.apache.spark.rpc.RpcEndpointAddress(at, "Master").toString()
            endpoint = timeout.awaitResult(backend.rpcEnv().asyncSetupEndpointRefByURI(uri))
            state = endpoint.askSync(request, timeout, answer)
        except Py4JJavaError as error:
            why = error.java_exception.getCause() or error.java_exception
            log.warning("master_not_reached", master=address, error=str(why))
            continue
        if (status := state.status().toString()) == "ALIVE":
            return any(app.id() == app_id for app in state.activeApps())
        log.info("master_does_not_decide", master=address, status=status)
    return None

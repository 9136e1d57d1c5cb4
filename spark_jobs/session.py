"""The Spark application of an instance: every setting it relies on, each with its reason.

It knows Spark's names for what resident slots need, how a Millrace job is started as a Spark job, and how secrets get
there: never on a command line, in a closure or in a broadcast. It refuses to know what a slot does and when a job
should run.

There is a SparkContext and no SparkSession: records never enter the JVM, so SQL would be memory for nothing.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

from pyspark import Accumulator, SparkConf, SparkContext
from pyspark.accumulators import AddingAccumulatorParam

from spark_jobs.client import SlotPlace

API_KEY = "MILLRACE_API_KEY"  # the variable in which a slot finds its key
SLOT_THREADS = 1024  # of a local master: one a slot; those that wait for a job cost nothing
UNLIMITED = 1_000_000  # failures of one slot that Spark answers by starting it again
_LOOPBACK = "127.0.0.1"
_WARNS_OF_EACH_POOL = "org.apache.spark.scheduler.FairSchedulableBuilder"  # that it makes without a file of pools
_LOCAL_MASTER = re.compile(r"local(?:\[\s*([0-9]+|\*)\s*(?:,\s*[0-9]+\s*)?\])?")

RESIDENT_SLOTS = {
    "spark.scheduler.mode": "FAIR",  # one job's slots never queue behind another's
    "spark.speculation": "false",  # a second copy of a slot would only fence the first one
    "spark.dynamicAllocation.enabled": "false",  # resident slots look busy for ever, idle executors look unused
    "spark.task.maxFailures": str(UNLIMITED),  # each start of a slot joins anew and fences what it left behind
    "spark.stage.maxConsecutiveAttempts": str(UNLIMITED),  # the same for a lost executor
    "spark.excludeOnFailure.enabled": "false",  # a killed slot says nothing about its executor
    "spark.cleaner.periodicGC.interval": "60min",  # slots leave nothing behind that the JVM should look for
}
PYTHON_WORKERS = {
    "spark.python.daemon.module": "spark_jobs.daemon",  # imports and kernels once, before the fork
    "spark.python.worker.reuse": "true",  # the next job's slot finds a process that is up
    "spark.python.unix.domain.socket.enabled": "true",  # no port, and 40 ms less to start a wave of slots
    "spark.python.worker.faulthandler.enabled": "true",  # a worker that crashes shows where, in Python
    "spark.python.task.killTimeout": "1s",  # after a cancelled slot did not end by itself
}
SMALL_DRIVER = {
    "spark.driver.memory": "512m",  # the least that Spark accepts; it holds task descriptions, no records
    "spark.driver.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xss512k -XX:+ExitOnOutOfMemoryError",
    "spark.ui.showConsoleProgress": "false",  # a bar that never ends
    "spark.log.level": "WARN",
}
PRIVATE = {
    "spark.redaction.regex": "(?i)secret|password|token|access[.]?key|api_?key",  # in the UI and in event logs
    "spark.ui.killEnabled": "false",  # the UI asks nobody who they are
}
AUTHENTICATED = {
    "spark.authenticate": "true",  # Spark's ports run what they are sent: only for who knows the secret
    "spark.network.crypto.enabled": "true",  # an executor is told its secrets over the network
    "spark.network.crypto.saslFallback": "false",  # nobody may ask for less
}
EMBEDDED = {
    "spark.driver.bindAddress": _LOOPBACK,  # nobody else has business here
    "spark.driver.host": _LOOPBACK,
    "spark.port.maxRetries": "100",  # several instances on one machine
}
CLUSTER = {
    "spark.deploy.maxExecutorRetries": "-1",  # a standalone master must not give the application up
    # A standalone executor is lost when its connection ends: by default Spark waits 5 s for somebody to say why.
    "spark.standalone.executorRemoveDelayOnDisconnection": "100ms",
    "spark.executor.memory": "512m",  # Python workers live outside of it
    # Without memory one would go on by halves: it ends, its tasks go to others at once, and Spark starts another.
    "spark.executor.extraJavaOptions": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:+ExitOnOutOfMemoryError",
}


def is_local(master: str) -> bool:
    """Whether the executors are threads of the driver's own JVM."""
    return master == "local" or master.startswith("local[")


def cores_in(master: str) -> int | None:
    """N of `local[N]`, `local[N,F]`; None where the master does not say."""
    found = _LOCAL_MASTER.fullmatch(master.strip())
    return int(found[1]) if found and found[1] and found[1] != "*" else None


def needs_secret(master: str) -> bool:
    """Whether Spark's daemons have a secret that an application must know; elsewhere Spark makes one a start."""
    return master.startswith("spark://")


def settings_for(
    master: str, *, name: str, has_ui: bool, has_auth: bool = True, cores: int | None = None
) -> dict[str, str]:
    """All Spark settings of an instance called `name` that anybody may see; `has_auth` counts on a cluster alone,
    `cores` on a standalone one: what it takes of it, at most.
    """
    place = EMBEDDED | AUTHENTICATED if is_local(master) else CLUSTER | (AUTHENTICATED if has_auth else {})
    return {
        **RESIDENT_SLOTS,
        **PYTHON_WORKERS,
        **SMALL_DRIVER,
        **PRIVATE,
        **place,
        **({"spark.cores.max": str(cores)} if cores and needs_secret(master) else {}),
        # N of local[N] says how many slots a job may have; the threads behind it must do for all jobs.
        "spark.master": f"local[{SLOT_THREADS},{UNLIMITED}]" if is_local(master) else master,
        "spark.app.name": f"millrace {name}",
        "spark.ui.enabled": str(has_ui or not is_local(master)).lower(),  # embedded: a port only if asked for
    }


def secrets_for(master: str, *, api_key: str, spark_secret: str | None) -> dict[str, str]:
    """Spark settings for nobody's eyes: the cluster's secret, and the slots' key in the environment of executors.

    A local master's workers have our environment already.
    """
    found = {}
    if spark_secret and needs_secret(master):
        found["spark.authenticate.secret"] = spark_secret
    if api_key and not is_local(master):
        found[f"spark.executorEnv.{API_KEY}"] = api_key
    return found


def start_spark(settings: Mapping[str, str], secrets: Mapping[str, str]) -> SparkContext:
    """Start the application: a JVM as a child of this process, which ends with it."""
    os.environ["PYSPARK_PYTHON"] = sys.executable  # the workers run in our environment
    if is_local(settings["spark.master"]):
        os.environ["SPARK_LOCAL_IP"] = _LOOPBACK  # the one thing that the UI's socket obeys
    # What the JVM is started with stands on its command line, for every user of this machine to read.
    SparkContext._ensure_initialized(conf=SparkConf(loadDefaults=False).setAll(settings.items()))
    context = SparkContext(conf=SparkConf().setAll({**settings, **secrets}.items()))
    context.environment.pop(API_KEY, None)  # it would travel with each closure; executors have it in theirs
    log4j = context._jvm.org.apache.logging.log4j
    log4j.core.config.Configurator.setLevel(_WARNS_OF_EACH_POOL, log4j.Level.ERROR)
    return context


def warm_up(context: SparkContext) -> None:
    """Have a worker daemon import what slots need (2 s), so that the first job finds it done."""
    context.setJobGroup("warm-up", "warm-up")
    context.parallelize([0], 1).foreach(_nothing)


class SlotWave:
    """One Spark job whose tasks are slots of one Millrace job, by their indices."""

    def __init__(self, context: SparkContext, job_name: str, slots: Sequence[int], place: SlotPlace) -> None:
        self._context, self._job_name, self._slots, self._place = context, job_name, slots, place
        self._ended = context.accumulator((), AddingAccumulatorParam[tuple[int, ...]](()))

    @property
    def running(self) -> set[int]:
        """Indices of those that have not ended by themselves; one that failed is about to be started again."""
        return set(self._slots).difference(self._ended.value)

    def run(self) -> None:
        """Start them; returns when all have ended.

        Call this in a thread of its own: group, name and pool belong to the thread. Raises Py4JError when the job is
        cancelled or Spark ends.
        """
        self._context.setJobGroup(self._place.job_id, self._job_name, interruptOnCancel=True)
        self._context.setLocalProperty("spark.scheduler.pool", self._job_name)
        be_slot = partial(_be_slot, self._place, self._ended)
        self._context.parallelize(self._slots, len(self._slots)).foreach(be_slot)


def kill_slot(context: SparkContext, attempt: int) -> None:
    """Have Spark kill the Python worker of a slot, wherever it runs, and start the slot again."""
    context._jsc.sc().killTaskAttempt(attempt, True, "the slot gave no sign of life")


def wait_for_jvm() -> None:
    """Block until Spark's JVM has ended, whatever ended it."""
    jvm = SparkContext._gateway.proc
    if jvm is not None:
        jvm.wait()
        return
    parent = os.getppid()  # spark-submit started us: the JVM is our parent
    while os.getppid() == parent:
        time.sleep(0.5)


def _be_slot(place: SlotPlace, ended: Accumulator[tuple[int, ...]], index: int) -> None:
    """In a Python worker. Imported there: the driver needs no kernels, and starts a second earlier without them."""
    from spark_jobs.daemon import EXECUTOR
    from spark_jobs.slot import run_slot

    run_slot(replace(place, executor=os.environ.get(EXECUTOR, "")), os.environ.get(API_KEY, ""), index)
    ended.add((index,))  # Spark tells the driver of it with the end of this task, not with that of the job


def _nothing(_: int) -> None:
    """What a warm-up does."""

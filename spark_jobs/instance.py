"""The driver of an instance: Spark jobs for each Millrace job that wants slots here.

It knows how an instance joins, what it keeps running, and how it ends: on SIGTERM after its slots committed what they
had, at once when its Spark or its parent is gone. It refuses to know tasks and records: slots talk to the API alone;
and which slots of a job are missing (`runs`).

What ends with what, each tried with SIGKILL: Spark's JVM ends with this process (its stdin closes), Python workers end
with the JVM; this process ends with the JVM (`_watch_spark`) and, embedded, with its parent (`--watch-stdin`).
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import os
import re
import signal
import socket
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final, Literal

import structlog
from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # it has no stubs
from pyspark import InheritableThread, SparkContext

from service import logs
from service.protocol import MAX_WAIT_MS, HeartbeatRequest, JoinedInstance, JoinRequest, WantedJob
from service.storage.private import keep_private, private_folder
from spark_jobs import cluster, pulse, session
from spark_jobs.client import Api, ApiError, Gone, Refused, SlotPlace, Unreachable
from spark_jobs.runs import JobRun
from spark_jobs.watch import ASK_EVERY_S, LOOK_EVERY_S, ApplicationWatch, CoreCount, End, ExecutorWatch

BAD_OPTIONS, SPARK_LOST, PARENT_LOST, REFUSED, NAME_TAKEN, BROKEN = 2, 3, 4, 5, 6, 7  # exit codes
LOG_LEVELS: Final = ("debug", "info", "warning", "error")
SPARK_AUTH: Final = ("on", "off")
RIVALRY_S: Final = 15.0  # gone so soon after joining again: somebody else joins under this name
DRAIN_S: Final = 12.0


@dataclass(frozen=True, slots=True)
class Options:
    """The command line, and what of the environment an instance reads."""

    api: str
    api_key: str = field(repr=False)
    log_level: str
    spark_master: str
    name: str
    cores: int | None
    spark_patience_s: float
    replica_dir: Path
    has_ui: bool
    watches_stdin: bool
    has_spark_auth: bool
    spark_secret: str | None = field(repr=False)


def parse(arguments: Sequence[str]) -> Options:
    """The command line; the only reader of the environment in this package."""
    parser = argparse.ArgumentParser(prog="millrace instance", description="Attach a Spark application to the API.")
    parser.add_argument("--api", required=True, action="append", help="where the API is reached; several: repeated")
    parser.add_argument("--spark-master", required=True, help="as in spark-submit; local[N] for N slots a job")
    parser.add_argument("--name", default=_host_name(), help="who this is: no two at once may have one name")
    parser.add_argument("--cores", type=_positive, help="cores: spark.cores.max; of local[N]: slots of a job")
    replicas = os.environ.get("MILLRACE_REPLICA_DIR") or Path(tempfile.gettempdir(), "millrace-replicas")
    parser.add_argument("--replica-dir", type=Path, default=Path(replicas), help="on each executor's own disk")
    parser.add_argument("--spark-ui", action="store_true", help="serve Spark's UI (on a cluster it always is)")
    parser.add_argument("--watch-stdin", action="store_true", help="end when standard input does")
    log_level = os.environ.get("MILLRACE_LOG_LEVEL") or "info"
    spark_auth, spark_secret = os.environ.get("MILLRACE_SPARK_AUTH") or "on", os.environ.get("MILLRACE_SPARK_SECRET")
    found = parser.parse_args(arguments)
    if log_level not in LOG_LEVELS:
        parser.error(f"MILLRACE_LOG_LEVEL is {log_level!r}: it is one of {', '.join(LOG_LEVELS)}")
    if spark_auth not in SPARK_AUTH:
        parser.error(f"MILLRACE_SPARK_AUTH is {spark_auth!r}: it is one of {', '.join(SPARK_AUTH)}")
    if spark_auth == "on" and session.needs_secret(found.spark_master) and not spark_secret:
        parser.error("MILLRACE_SPARK_SECRET is not set: the spark.authenticate.secret of this cluster (security.md)")
    return Options(
        api=",".join(url.strip().rstrip("/") for urls in found.api for url in urls.split(",") if url.strip()),
        api_key=os.environ.get(session.API_KEY, ""),
        log_level=log_level,
        spark_master=found.spark_master,
        name=found.name,
        cores=found.cores,
        spark_patience_s=_milliseconds(parser, "MILLRACE_SPARK_PATIENCE_MS", 30_000) / 1000,
        replica_dir=found.replica_dir.absolute(),
        has_ui=found.spark_ui,
        watches_stdin=found.watch_stdin,
        has_spark_auth=spark_auth == "on",
        spark_secret=spark_secret if spark_auth == "on" else None,
    )


def main() -> int:
    """Run an instance until SIGTERM; the exit code."""
    options = parse(sys.argv[1:])
    keep_private()
    logs.configure(options.log_level)
    try:
        private_folder(options.replica_dir)
    except OSError as error:
        structlog.get_logger().critical("replica_dir_refused", error=str(error))
        return BAD_OPTIONS
    logging.getLogger("py4j").setLevel(logging.WARNING)
    asked_to_stop = threading.Event()
    if options.watches_stdin:
        threading.Thread(target=_watch_stdin, name="stdin", daemon=True).start()
    context = _start_spark(options)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: asked_to_stop.set())
    threading.Thread(target=_watch_spark, args=(asked_to_stop,), name="spark", daemon=True).start()
    with Api(options.api, options.api_key) as api:
        code = Instance(api, context, options, asked_to_stop).run()
        with contextlib.suppress(Py4JError):
            context.stop()
    return code


def _start_spark(options: Options) -> SparkContext:
    has = {"has_ui": options.has_ui, "has_auth": options.has_spark_auth}
    settings = session.settings_for(options.spark_master, name=options.name, cores=options.cores, **has)
    secrets = session.secrets_for(options.spark_master, api_key=options.api_key, spark_secret=options.spark_secret)
    return session.start_spark(settings, secrets)


class Instance:
    """One Spark application as a member: what it was told to run, it runs."""

    def __init__(self, api: Api, context: SparkContext, options: Options, asked_to_stop: threading.Event) -> None:
        self._api, self._context, self._options, self._asked_to_stop = api, context, options, asked_to_stop
        self._incarnation = uuid.uuid4().hex
        self._member: JoinedInstance | None = None
        self._jobs: dict[str, JobRun] = {}
        self._guard = threading.Lock()  # of _jobs: heartbeats start them, the end stops them
        self._is_local = session.is_local(options.spark_master)
        self._joins = self._cores = 0
        self._shortage: Literal["", "no_cores"] = ""
        self._joined_again_s = -math.inf
        self._code = 0
        self._log = structlog.get_logger().bind(instance=options.name)

    def run(self) -> int:
        """Be a member until asked to stop, then let the slots commit what they have, and leave."""
        InheritableThread(target=self._keep_heart, name="heartbeat", daemon=True).start()
        if not self._is_local:
            self._watch_cluster()
        self._asked_to_stop.wait()
        self._drain()
        return self._code

    # ------------------------------------------------------------ member

    def _keep_heart(self) -> None:
        """Nobody would miss a heartbeat that ends by a fault of ours: so the instance ends with it."""
        try:
            self._be_member()
        finally:
            if not self._asked_to_stop.is_set():
                self._give_up(BROKEN, "its heartbeat ended")

    def _be_member(self) -> None:
        """Join, then heartbeats: each answer says what should run."""
        known = ""
        self._warm_up()
        while self._code == 0:
            try:
                member = self._member or self._join()
                has: dict[str, Any] = {} if self._is_local else {"cores": self._cores, "shortage": self._shortage}
                pulses = pulse.signs_of_life(self._pulses_of(member), member.lease_ms / 1000)
                beat = HeartbeatRequest(self._incarnation, self._running(), known, MAX_WAIT_MS, pulses=pulses, **has)
                wanted = self._api.heartbeat(member.instance_id, beat)
                known = wanted.version
                self._reconcile(wanted.jobs)
                self._look_after(member)
            except Gone as error:
                self._log.warning("instance_gone", error=str(error))
                self._member, known = None, ""
                if self._asked_to_stop.is_set():
                    return
                if time.monotonic() - self._joined_again_s < RIVALRY_S:
                    self._give_up(NAME_TAKEN, "another process joined under this name")
            except Unreachable as error:
                self._log.warning("api_unreachable", error=str(error))
            except Refused as error:
                self._give_up(REFUSED, str(error))

    def _warm_up(self) -> None:
        """Beside the join: on a cluster the first executor may come late."""
        InheritableThread(target=session.warm_up, args=(self._context,), name="warm-up", daemon=True).start()
        if self._is_local:
            master = self._options.spark_master
            self._cores = self._options.cores or session.cores_in(master) or os.cpu_count() or 1

    def _join(self) -> JoinedInstance:
        context, options = self._context, self._options
        spark = {"app_id": context.applicationId, "ui": context.uiWebUrl or "", "master": context.master}
        spark |= {"version": context.version, "millrace": version("millrace")}
        joining = JoinRequest(options.name, self._incarnation, socket.gethostname(), self._cores, spark)
        self._member = member = self._api.join_instance(joining)
        if self._joins:
            self._joined_again_s = time.monotonic()
        self._joins += 1
        self._log.info("instance_joined", id=member.instance_id, cores=self._cores, spark=spark)
        return member

    # ------------------------------------------------------------ the cluster

    def _watch_cluster(self) -> None:
        """Two threads: one asks the JVM, the other the masters, who may keep it waiting beyond its patience."""
        master, has_masters = self._options.spark_master, session.needs_secret(self._options.spark_master)
        watch = ApplicationWatch(self._options.spark_patience_s, time.monotonic(), has_masters)
        threading.Thread(target=self._keep_watch, args=(watch,), name="application", daemon=True).start()
        if has_masters:
            threading.Thread(target=self._ask_masters, args=(watch, master), name="masters", daemon=True).start()

    def _keep_watch(self, watch: ApplicationWatch) -> None:
        """As the heart: an instance over which nobody watches by a fault of ours ends."""
        try:
            self._watch_application(watch)
        finally:
            if not self._asked_to_stop.is_set():
                self._give_up(BROKEN, "its watch over the cluster ended")

    def _watch_application(self, watch: ApplicationWatch) -> None:
        """Until asked to stop: say which executors were lost, count cores, end where it can not go on."""
        happened = cluster.listen(self._context)
        executors = ExecutorWatch(self._lose)
        cores = CoreCount(self._options.cores, self._options.spark_patience_s)
        while not self._asked_to_stop.is_set():
            happened.wait(LOOK_EVERY_S)
            happened.clear()
            try:
                look = cluster.look_at(self._context)
            except (Py4JError, OSError):
                self._asked_to_stop.wait()  # the JVM ends, and with it this process
                return
            now_s = time.monotonic()
            executors.note(look.executors)
            watch.note_executors(now_s, len(look.executors))
            self._cores = cores.note(now_s, look.cores)
            self._shortage = "" if look.executors else "no_cores"
            end = End.APPLICATION_GONE if look.is_stopped else watch.end(now_s)
            if end is not None:
                self._give_up(end, end.name.lower())

    def _ask_masters(self, watch: ApplicationWatch, master: str) -> None:
        while not self._asked_to_stop.wait(ASK_EVERY_S):
            try:
                is_known = cluster.ask_masters(self._context, master, self._context.applicationId)
            except (Py4JError, OSError):
                is_known = None  # Spark ends, or will
            watch.note_masters(time.monotonic(), is_known)

    def _lose(self, executors: Collection[str]) -> bool:
        """Say that executors were lost; False: nobody could be told."""
        self._log.warning("executors_lost", executors=executors)
        if (member := self._member) is None:
            return False
        try:
            self._api.lose_executors(member.instance_id, self._incarnation, executors)
        except Gone:
            return True  # with all its slots
        except ApiError as error:
            self._log.warning("lost_executors_not_said", error=str(error))
            return False
        return True

    def _give_up(self, code: int, why: str) -> None:
        if self._code:
            return
        self._log.critical("instance_gives_up", why=why)
        self._code = code
        self._asked_to_stop.set()

    def _running(self) -> dict[str, int]:
        with self._guard:
            return {job.wanted.id: len(job.running) for job in self._jobs.values() if not job.is_over}

    def _reconcile(self, wanted: Sequence[WantedJob]) -> None:
        """Start what is wanted and not there; let go what is there and not wanted."""
        with self._guard:
            if self._asked_to_stop.is_set():
                return
            self._jobs = {job_id: job for job_id, job in self._jobs.items() if not job.is_over}
            wanted_by_id = {job.id: job for job in wanted}
            for job_id, job in self._jobs.items():
                if job_id not in wanted_by_id:
                    job.let_go()
            for job_id, found in wanted_by_id.items():
                if job_id not in self._jobs:
                    self._jobs[job_id] = JobRun(found, self._new_wave, partial(self._context.cancelJobGroup, job_id))
                self._jobs[job_id].keep(found)

    def _new_wave(self, job: WantedJob, slots: Sequence[int]) -> session.SlotWave | None:
        """Slots of a job that find their work as of now; None between two memberships."""
        member, options = self._member, self._options
        if member is None:
            return None
        place = SlotPlace(options.api, member.instance_id, member.storage_uri, options.replica_dir, job.id)
        return session.SlotWave(self._context, job.name, slots, place)

    def _look_after(self, member: JoinedInstance) -> None:
        """End slots that hang."""
        silent_s = member.lease_ms / 1000 + pulse.BEHIND_LEASE_S
        for attempt in pulse.silent_attempts(self._pulses_of(member), silent_s):
            self._log.warning("slot_hangs", attempt=attempt)
            session.kill_slot(self._context, attempt)

    def _pulses_of(self, member: JoinedInstance) -> Path:
        return pulse.folder_of(self._options.replica_dir, member.instance_id)

    # ------------------------------------------------------------ the end

    def _drain(self) -> None:
        """Slots hand their tasks to others, as far as the API lets them wait for that, commit and leave; the instance
        leaves when they have, or DRAIN_S later. Without executors there is nobody to wait for.
        """
        if self._code in (End.EXECUTORS_LOST, End.APPLICATION_GONE):
            self._leave(drain=False)
            return
        with self._guard:
            jobs = list(self._jobs.values())
            for job in jobs:
                job.let_go()
        member = self._member
        waits_s = member.scale_down_timeout_ms / 1000 if self._leave(drain=True) and member is not None else 0.0
        until = time.monotonic() + waits_s + DRAIN_S
        for job in jobs:
            job.join(max(0.0, until - time.monotonic()))
        with contextlib.suppress(Py4JError):  # a service manager may have told Spark to end, too
            self._context.cancelAllJobs()
        self._leave(drain=False)
        self._log.info("instance_left", was_drained=all(job.is_over for job in jobs))

    def _leave(self, *, drain: bool) -> bool:
        """Returns whether the API knows."""
        if self._member is None:
            return False
        try:
            self._api.leave_instance(self._member.instance_id, self._incarnation, drain=drain)
        except (Unreachable, Refused) as error:
            self._log.warning("leave_failed", error=str(error))  # then the lease runs out
            return False
        return True


def _watch_spark(asked_to_stop: threading.Event) -> None:
    """Without its JVM this process is nothing: end, so that whoever started it starts another."""
    session.wait_for_jvm()
    if not asked_to_stop.is_set():
        structlog.get_logger().critical("spark_lost")
        os._exit(SPARK_LOST)


def _watch_stdin() -> None:
    """The parent holds the other end and never writes: its end is the parent's."""
    while os.read(sys.stdin.fileno(), 1024):
        pass
    os._exit(PARENT_LOST)


def _positive(text: str) -> int:
    count = int(text)
    if count < 1:
        raise argparse.ArgumentTypeError("is 1 or more")
    return count


def _milliseconds(parser: argparse.ArgumentParser, variable: str, default: int) -> int:
    text = os.environ.get(variable) or str(default)
    if not text.isdecimal() or int(text) < 1:
        parser.error(f"{variable} is {text!r}: it is a number of ms, 1 or more")
    return int(text)


def _host_name() -> str:
    return re.sub(r"[^A-Za-z0-9_.-]", "-", socket.gethostname())[:64] or "instance"


if __name__ == "__main__":
    sys.exit(main())

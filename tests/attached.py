"""Instances as processes of their own, attached to a running service; and a Spark standalone cluster for them.

Knows how to start them, find their processes and end them. Knows nothing of what they run.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from benchmarks.running import PATIENCE_S, Running, clean_environment, wait_until
from tests import class_archive

LOOPBACK = "127.0.0.1"
RETRIES = 2  # of a worker that lost its master, 5 to 15 s apart; behind them 30 to 90 s
LAST_RETRY = f"Retrying connection to master (attempt # {RETRIES})"
RECOVERED = "Recovery complete"  # says a master that remembers


class Attached:
    """One instance: `python -m spark_jobs.instance`, attached to `running` under a key of role `instance`."""

    def __init__(
        self,
        running: Running,
        folder: Path,
        *arguments: str,
        name: str = "tested",
        master: str = "local[2]",
        secret: str = "",
        spark_patience_ms: int = 30_000,
    ) -> None:
        self.running, self.name, self.log = running, name, folder / f"{name}.log"
        self.key = str(running.call("POST", "/v1/tokens", json={"role": "instance", "name": name})["key"])
        self.replicas = folder / "replicas"
        self._environment = clean_environment(
            {
                "MILLRACE_API_KEY": self.key,
                "MILLRACE_REPLICA_DIR": str(self.replicas),
                "MILLRACE_SPARK_SECRET": secret,
                "MILLRACE_SPARK_PATIENCE_MS": str(spark_patience_ms),
            }
        )
        self._command = [sys.executable, "-m", "spark_jobs.instance", "--api", running.url]
        self._command += ["--spark-master", master, "--name", name, *arguments]
        self.process: subprocess.Popen[bytes]

    def start(self) -> Self:
        """Start it; does not wait for its join."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdin=subprocess.PIPE, stdout=log, stderr=log
            )
        return self

    def wait_until_live(self, timeout_s: float = PATIENCE_S) -> dict[str, Any]:
        """The instance as the API shows it, once this process has joined."""
        wait_until(
            lambda: self._shown().get("state") == "live", f"{self.name} to join; see {self.log}", timeout_s=timeout_s
        )
        return self._shown()

    def wait_until_it_has(self, **shown: Any) -> None:
        """Until the API shows it so."""
        is_so = lambda: shown.items() <= self._shown().items()  # noqa: E731
        wait_until(is_so, f"{self.name} to have {shown}; see {self.log}")

    def _shown(self) -> dict[str, Any]:
        found = self.running.call("GET", "/v1/instances")["items"]
        return next((instance for instance in found if instance["name"] == self.name), {})

    def jvm(self) -> psutil.Process:
        """Spark's JVM."""
        return next(child for child in psutil.Process(self.process.pid).children() if child.name() == "java")

    def slots(self) -> list[psutil.Process]:
        """The Python workers that are slots now, on this machine."""
        told = [int(file.read_text().partition(" ")[0] or 0) for file in sorted(self.replicas.glob("*/pulses/*"))]
        return [psutil.Process(pid) for pid in told if psutil.pid_exists(pid)]

    def executors(self) -> list[psutil.Process]:
        """The JVMs of a cluster in which its slots run now: those whose daemons forked them."""
        daemons = [slot.parent() for slot in self.slots()]
        return [psutil.Process(pid) for pid in sorted({daemon.ppid() for daemon in daemons if daemon is not None})]

    def descendants(self) -> list[psutil.Process]:
        """All that it started, directly or not."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(timeout_s)
        self._close_stdin()
        return code

    def end(self) -> None:
        """SIGKILL, unless it has ended."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._close_stdin()

    def _close_stdin(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()


def are_gone(processes: list[psutil.Process]) -> bool:
    """Whether none of them runs any more."""
    return not any(map(_is_running, processes))


def _is_running(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # between the two questions
        return False


# ---------------------------------------------------------------- standalone


class Standalone:
    """A Spark standalone cluster on loopback: one master, a worker for each number of `cores`, and the secret that they
    ask for. The master keeps its state in the folder `recovery`. A context manager.
    """

    def __init__(
        self, folder: Path, cores: Sequence[int] = (16, 16), environment: Mapping[str, str] | None = None
    ) -> None:
        self._folder, self._cores = folder, cores
        self.master = f"spark://{LOOPBACK}:{free_port()}"
        self.secret = secrets.token_urlsafe(32)
        self.recovery, self.log = folder / "recovery", folder / "master.log"
        self._home, self._properties = Path(pyspark.__file__).parent, folder / "spark.properties"
        self.recovery.mkdir()
        self._properties.write_text(
            f"spark.authenticate true\nspark.authenticate.secret {self.secret}\nspark.network.crypto.enabled true\n"
            f"spark.worker.initialRegistrationRetries {RETRIES}\n"
        )
        self._environment = {
            **os.environ,
            **(environment or {}),
            "SPARK_HOME": str(self._home),
            "SPARK_LOCAL_IP": LOOPBACK,
            "SPARK_DAEMON_MEMORY": "256m",
            **class_archive.options(),
            "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
            f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={self.recovery}",
        }
        self._started: list[subprocess.Popen[bytes]] = []
        self.workers: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        with ExitStack() as opened:
            opened.callback(self.end)
            self._start_master()
            self.workers = [self._worker(number) for number in range(len(self._cores))]
            self._wait_for("Registering worker", len(self._cores))
            opened.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.end()

    def end(self) -> None:
        """All of it."""
        for daemon in reversed(self._started):
            _end(daemon)

    @property
    def daemons(self) -> list[subprocess.Popen[bytes]]:
        """The master, and the workers."""
        return [self._master, *self.workers]

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, over all workers."""
        return [executor for number in range(len(self.workers)) for executor in self.executors_of(number)]

    def executors_of(self, worker: int) -> list[psutil.Process]:
        """The JVMs that a worker has started."""
        return psutil.Process(self.workers[worker].pid).children()

    def kill_worker(self, worker: int) -> None:
        """SIGKILL, of the worker and its executors: as where a machine is lost."""
        for process in [psutil.Process(self.workers[worker].pid), *self.executors_of(worker)]:
            process.kill()
        self.workers[worker].wait()

    def start_worker(self, worker: int) -> None:
        """Another one in the place of one that was killed."""
        before = self._said("Registering worker")
        self.workers[worker] = self._worker(worker)
        self._wait_for("Registering worker", before + 1)

    def restart_master(self, *, forgets: bool) -> None:
        """SIGKILL, then another one at its address, who finds what the former one kept, or nothing.

        A worker that asks a master which recovers just then is taken for one without executors (a race of Spark's own):
        they are ended, or started twice. So one that remembers comes when workers have asked in vain, and wait.
        """
        logs = [self._folder / f"worker-{number}.log" for number in range(len(self.workers))]
        asked = {log: log.read_text().count(LAST_RETRY) for log in logs}
        self._master.kill()
        self._master.wait()
        if forgets:
            shutil.rmtree(self.recovery)
            self.recovery.mkdir()
        else:
            have_asked = lambda: all(log.read_text().count(LAST_RETRY) > asked[log] for log in logs)  # noqa: E731
            wait_until(have_asked, f"the last questions of workers before they wait; see {self._folder}")
        self._start_master()

    def recoveries(self) -> int:
        """How often a master has found again all that it remembers."""
        return self._said(RECOVERED)

    def wait_for_recovery(self, times: int) -> None:
        """Until so many masters have found again all that they remember."""
        self._wait_for(RECOVERED, times)

    def _start_master(self) -> None:
        before = self._said("elected leader")
        where = ["--host", LOOPBACK, "--webui-port", "0", "--port", self.master.rpartition(":")[2]]
        self._master = self._start("master", "org.apache.spark.deploy.master.Master", *where)
        self._wait_for("elected leader", before + 1)

    def _worker(self, number: int) -> subprocess.Popen[bytes]:
        where = ["--host", LOOPBACK, "--webui-port", "0", "--work-dir", str(self._folder / f"work-{number}")]
        size = ["--cores", str(self._cores[number]), "--memory", "2g", self.master]
        return self._start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *where, *size)

    def _start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        # Not a SPARK_CONF_DIR: that one comes first in the class path, which then fits no archive of classes.
        spark_class, properties = str(self._home / "bin" / "spark-class"), ["--properties-file", str(self._properties)]
        command = [spark_class, arguments[0], *properties, *arguments[1:]]
        with (self._folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log, cwd=self._folder)
        self._started.append(process)
        return process

    def _said(self, text: str) -> int:
        """How often masters have logged that."""
        return self.log.read_text().count(text) if self.log.exists() else 0

    def _wait_for(self, text: str, times: int) -> None:
        wait_until(lambda: self._said(text) >= times, f"{times} × {text!r}; see {self.log}")


def free_port() -> int:
    """A port of loopback that nobody has, just now."""
    with socket.create_server((LOOPBACK, 0)) as taken:
        return int(taken.getsockname()[1])


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

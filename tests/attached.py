"""Instances as processes of their own, attached to a running service; and a Spark standalone cluster for them.

Knows how to start them, find their processes and end them. Knows nothing of what they run.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil
import pyspark

from benchmarks.running import PATIENCE_S, Running, clean_environment, wait_until

LOOPBACK = "127.0.0.1"
RETRIES = 2  # of a worker that lost its master, 5 to 15 s apart; behind them 30 to 90 s
LAST_RETRY = f"Retrying connection to master (attempt # {RETRIES})"


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
        wait_until(lambda: self._shown().get("state") == "live", timeout_s, f"{self.name} to join; see {self.log}")
        return self._shown()

    def wait_until_it_has(self, **shown: Any) -> None:
        """Until the API shows it so."""
        is_so = lambda: shown.items() <= self._shown().items()  # noqa: E731
        wait_until(is_so, PATIENCE_S, f"{self.name} to have {shown}; see {self.log}")

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
    return not any(one.is_running() and one.status() != psutil.STATUS_ZOMBIE for one in processes)


# ---------------------------------------------------------------- standalone


@dataclass
class Standalone:
    """A Spark standalone cluster on loopback: one master, two workers, and the secret that they ask for. The master
    keeps its state in the folder `recovery`.
    """

    master: str
    secret: str
    daemons: list[subprocess.Popen[bytes]]
    recovery: Path
    start_master: Callable[[], subprocess.Popen[bytes]]

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, over all workers."""
        return [child for daemon in self.daemons for child in psutil.Process(daemon.pid).children()]

    def restart_master(self, *, forgets: bool) -> None:
        """SIGKILL, then another one at its address, who finds what the former one kept, or nothing.

        A worker that asks a master which recovers just then is told to kill its executors, which that master does not
        know yet (a race of Spark's own): so one that remembers comes when workers have asked in vain, and wait.
        """
        folder = self.recovery.parent
        logs = [folder / f"worker-{i}.log" for i in range(len(self.daemons) - 1)]
        asked = {log: log.read_text().count(LAST_RETRY) for log in logs}
        self.daemons[0].kill()
        self.daemons[0].wait()
        if forgets:
            shutil.rmtree(self.recovery)
            self.recovery.mkdir()
        else:
            wait_until(
                lambda: all(log.read_text().count(LAST_RETRY) > asked[log] for log in logs),
                PATIENCE_S,
                f"the last questions of workers before they wait; see {folder}",
            )
        self.daemons[0] = self.start_master()


@contextmanager
def standalone(folder: Path, environment: Mapping[str, str] | None = None) -> Iterator[Standalone]:
    """Start a cluster from the pip package; ends with the block."""
    home, conf, secret = Path(pyspark.__file__).parent, folder / "conf", secrets.token_urlsafe(32)
    recovery = folder / "recovery"
    conf.mkdir()
    recovery.mkdir()
    (conf / "spark-defaults.conf").write_text(
        f"spark.authenticate true\nspark.authenticate.secret {secret}\nspark.network.crypto.enabled true\n"
        f"spark.worker.initialRegistrationRetries {RETRIES}\n"
    )
    env = {
        **os.environ,
        **(environment or {}),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": LOOPBACK,
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_CONF_DIR": str(conf),
        "SPARK_DAEMON_JAVA_OPTS": "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
        f" -Dspark.deploy.recoveryMode=FILESYSTEM -Dspark.deploy.recoveryDirectory={recovery}",
    }
    master = f"spark://{LOOPBACK}:{free_port()}"
    package = "org.apache.spark.deploy"
    with ExitStack() as opened:

        def start(name: str, *arguments: str) -> subprocess.Popen[bytes]:
            log = opened.enter_context((folder / f"{name}.log").open("ab"))
            command = [str(home / "bin" / "spark-class"), *arguments]
            process = subprocess.Popen(command, env=env, stdout=log, stderr=log, cwd=folder)
            opened.callback(_end, process)
            return process

        where = ["--host", LOOPBACK, "--webui-port", "0"]
        port = master.rpartition(":")[2]
        start_master = partial(start, "master", f"{package}.master.Master", *where, "--port", port)
        master_process, log = start_master(), folder / "master.log"
        wait_until(lambda: "elected leader" in log.read_text(), PATIENCE_S, f"a master; see {log}")
        size = ["--cores", "16", "--memory", "2g"]
        workers = [
            start(
                f"worker-{i}",
                f"{package}.worker.Worker",
                *where,
                *size,
                "--work-dir",
                str(folder / f"work-{i}"),
                master,
            )
            for i in range(2)
        ]
        wait_until(
            lambda: len(re.findall("Registering worker", log.read_text())) == 2, PATIENCE_S, f"two workers; see {log}"
        )
        yield Standalone(master, secret, [master_process, *workers], recovery, start_master)


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

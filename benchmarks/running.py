"""A real `millrace up` as a child process: the one way in which the demo, the benchmarks and the tests start one.

Knows how to start it, hear that it is ready, talk to it as an admin and stop it. Knows nothing of what is asked of it.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import pyarrow as pa
import pyarrow.ipc

ARROW = "application/vnd.apache.arrow.stream"
NDJSON = "application/x-ndjson"
PATIENCE_S = 150.0  # for what takes seconds on a machine that has nothing else to do


class NotReady(Exception):
    """The service did not say that it is ready; its log's end is in the message."""


class JobFailed(Exception):
    """A job ended before it had read everything; its error is in the message."""


def clean_environment(more: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment for a child: ours without the settings of a service that we may have, and what is given."""
    return {name: value for name, value in os.environ.items() if not name.startswith("MILLRACE_")} | dict(more or {})


class Running:
    """One embedded service on `data_dir`; a context manager that ends it with SIGTERM."""

    def __init__(
        self,
        data_dir: Path,
        *,
        cores: int = 2,
        instances: int = 1,
        environment: Mapping[str, str] | None = None,
        arguments: tuple[str, ...] = (),
        popen: Callable[..., Any] = subprocess.Popen,
    ) -> None:
        self.data_dir, self._popen = data_dir, popen
        self.log = data_dir.parent / f"{data_dir.name}.log"
        self._command = [
            sys.executable,
            "-m",
            "service.cli",
            "up",
            "--data-dir",
            str(data_dir),
        ]
        self._command += ["--cores", str(cores), "--instances", str(instances), *arguments]
        self._environment = clean_environment(environment)
        self.instances = instances
        self.process: subprocess.Popen[str]
        self.client: httpx.Client
        self.url = ""

    def start(self, timeout_s: float = PATIENCE_S, *, port: int = 0) -> Self:
        """Start the process on a port (0: a free one) and wait for its one line `ready http://…`.

        Raises:
            NotReady: it ended, or said nothing in time.
        """
        with self.log.open("a") as log:
            self.process = self._popen(
                [*self._command, "--port", str(port)],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        heard, _, _ = select.select([self.process.stdout], [], [], timeout_s)
        line = self.process.stdout.readline() if heard else ""
        if not line.startswith("ready "):
            self.process.kill()
            self.process.wait()
            self.process.stdout.close()
            raise NotReady(f"{line!r}; {self.log} ends with:\n{self.log.read_text()[-4000:]}")
        self.url = line.split()[1]
        key = self._environment.get("MILLRACE_API_KEY") or (self.data_dir / "admin-key").read_text().strip()
        headers = {"Authorization": f"Bearer {key}"}  # verify: no TLS here, whose certificates take 50 ms to load
        self.client = httpx.Client(base_url=self.url, headers=headers, timeout=httpx.Timeout(120), verify=False)
        return self

    def wait_for_instances(self, timeout_s: float = PATIENCE_S) -> None:
        """Return when an instance is live (`/readyz` answers 200)."""
        wait_until(lambda: self.client.get("/readyz").status_code == 200, "a live instance", timeout_s=timeout_s)

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """SIGTERM; the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.ended(timeout_s)

    def kill(self) -> int:
        """SIGKILL, as a power cut would."""
        self.process.kill()
        return self.ended(10)

    def ended(self, timeout_s: float) -> int:
        """Wait for the end of the process; its exit code. The client is closed behind it: whoever still waits for an
        answer may wait for its timeout, on what has the number of its socket by then.
        """
        code = self.process.wait(timeout_s)
        self.client.close()
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code

    def call(self, method: str, path: str, **how: Any) -> Any:
        """One request; its JSON answer.

        Raises:
            httpx.HTTPStatusError: any status of 400 or more; the message carries the problem's text.
        """
        answer = self.client.request(method, path, **how)
        if answer.is_error:
            message = f"{method} {path}: {answer.status_code} {answer.text}"
            raise httpx.HTTPStatusError(message, request=answer.request, response=answer)
        return answer.json() if answer.content else None

    def wait_until_caught_up(self, job: str, timeout_s: float = 600) -> None:
        """Return when a job has read all there is, has done what it was asked for, and lookups reflect it.

        Raises:
            JobFailed: it has failed.
            TimeoutError: it was not so in time.
        """
        for _ in self.progress_of(job, timeout_s=timeout_s, every_ms=10_000):
            pass

    def progress_of(self, job: str, timeout_s: float = 600, every_ms: int = 100) -> Iterator[Any]:
        """A job as it stands, now and again, the last time when it is caught up.

        Raises:
            JobFailed: it has failed.
            TimeoutError: it was not so in time.
        """
        until = time.monotonic() + timeout_s
        while True:
            view = self.call("GET", f"/v1/jobs/{job}", params={"wait": "caught_up", "timeout_ms": every_ms})
            if view["state"] in {"failed", "stopped"}:
                raise JobFailed(f"{job} is {view['state']}: {view['error']}")
            yield view
            if view["caught_up"]:
                return
            if time.monotonic() > until:
                raise TimeoutError(f"{job} did not catch up in {timeout_s} s")

    def read(self, stream: str, partitions: int) -> pa.Table:
        """All records of a stream, partition after partition, through the public API as Arrow."""
        return pa.concat_tables(page for partition in range(partitions) for page in self._pages(stream, partition))

    def _pages(self, stream: str, partition: int) -> Iterator[pa.Table]:
        offset = 0
        while True:
            where = {"partition": partition, "from_offset": offset, "limit": 100_000}
            answer = self.client.get(f"/v1/streams/{stream}/records", params=where, headers={"Accept": ARROW})
            answer.raise_for_status()
            page = pa.ipc.open_stream(answer.content).read_all()
            yield page
            if page.num_rows == 0:
                return
            offset = page["offset"][-1].as_py() + 1

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            self.stop()
        else:
            self.ended(10)


def wait_until(is_so: Callable[[], bool], what: str, *, timeout_s: float = PATIENCE_S, every_s: float = 0.05) -> None:
    """Ask again and again until it is so. What would come about later anyhow, and what is about speed, takes a
    `timeout_s` of its own.

    Raises:
        TimeoutError: it was not so in time.
    """
    until = time.monotonic() + timeout_s
    while not is_so():
        if time.monotonic() > until:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(every_s)

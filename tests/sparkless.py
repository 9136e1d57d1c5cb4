"""An instance without Spark, for tests of everything but Spark: a process whose slots are processes forked from it.

It speaks the same protocol and runs the same slots as `spark_jobs.instance`; a slot that is killed is started again, as
Spark does; on SIGTERM it drains. It ends with its parent, and when the API is gone. Run as a program it takes the API's
URL, its key (in the environment, as MILLRACE_API_KEY), a folder for replicas and its name; without arguments it is a
`ForkServer`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from spark_jobs import daemon

if TYPE_CHECKING:  # what is imported before `daemon.load` may start threads, and then nothing can be forked
    import psutil

    from spark_jobs.client import Api, SlotPlace
    from tests.serving import Serving

ROOT = Path(__file__).parents[1]
DRAIN_WAIT_MS = 200  # of a heartbeat, while slots leave


@contextmanager
def instance(service: Serving, replica_dir: Path, name: str = "sparkless") -> Iterator[subprocess.Popen[bytes]]:
    """An instance process of a service, until the block ends."""
    process = start(service.url, service.secrets["instance"], replica_dir, name)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def start(
    url: str, key: str, replica_dir: Path, name: str = "sparkless", environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """An instance process of the API at `url`; its log is beside `replica_dir`. Does not wait for its join."""
    from benchmarks.running import clean_environment

    command = [sys.executable, "-m", "tests.sparkless", url, str(replica_dir), name]
    env = clean_environment({**(environment or {}), "MILLRACE_API_KEY": key, "PYTHONPATH": str(ROOT)})
    with (replica_dir.parent / f"{name}.log").open("ab") as log:
        return subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)


class ForkServer:
    """A process that has loaded what instances need and forks them: milliseconds each, in place of 2 s of CPU.

    A context manager; its instances end with it.
    """

    def __enter__(self) -> Self:
        from benchmarks.running import clean_environment

        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.sparkless"],
            env=clean_environment({"PYTHONPATH": str(ROOT)}),
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        return self

    def start(self, url: str, key: str, replica_dir: Path, name: str) -> psutil.Process:
        """An instance, as `start` makes one."""
        import psutil

        assert self._process.stdin is not None
        assert self._process.stdout is not None
        asked = {"url": url, "key": key, "replica_dir": str(replica_dir), "name": name}
        self._process.stdin.write(f"{json.dumps(asked)}\n")
        self._process.stdin.flush()
        return psutil.Process(int(self._process.stdout.readline()))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._process:  # its end of input is its end
            pass


def main() -> None:
    """Be an instance, or fork those that are asked for."""
    daemon.die_with_parent()
    daemon.load()
    if len(sys.argv) > 1:
        url, replica_dir, name = sys.argv[1:]
        _be_instance(url, os.environ["MILLRACE_API_KEY"], Path(replica_dir), name)
    else:
        _fork_on_request()


def _fork_on_request() -> None:
    """An instance for each line that comes in; the answer is its process id."""
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the kernel forgets those that end
    for line in sys.stdin:
        asked = json.loads(line)
        pid = _fork(lambda asked=asked: _be_forked(**asked))
        sys.stdout.write(f"{pid}\n")
        sys.stdout.flush()


def _be_forked(url: str, key: str, replica_dir: str, name: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(Path(replica_dir).parent / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    null = os.open(os.devnull, os.O_RDONLY)
    for ours, theirs in ((null, 0), (log, 1), (log, 2)):
        os.dup2(ours, theirs)
    _be_instance(url, key, Path(replica_dir), name)


def _be_instance(url: str, key: str, replica_dir: Path, name: str) -> None:
    """Join, and run what is wanted until killed, or until asked to leave."""
    from service.protocol import JoinRequest
    from spark_jobs.client import Api, SlotPlace

    incarnation = uuid.uuid4().hex
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Api(url, key) as api:
        member = api.join_instance(JoinRequest(name, incarnation, "localhost", 2))
        place = SlotPlace(url, member.instance_id, member.storage_uri, replica_dir, job_id="")
        try:
            _run_wanted(api, key, place, incarnation)
        except KeyboardInterrupt:
            _drain(api, place.instance_id, incarnation)


def _run_wanted(api: Api, key: str, place: SlotPlace, incarnation: str) -> None:
    """Heartbeats: each answer says what should run. Returns when the API is gone, or this instance for the API."""
    from service.protocol import MAX_WAIT_MS, HeartbeatRequest
    from spark_jobs.client import Gone, Unreachable

    known, slots = "", dict[str, dict[int, int]]()  # job → index → process id
    while True:
        running = {job_id: len(pids) for job_id, pids in slots.items()}
        try:
            wanted = api.heartbeat(place.instance_id, HeartbeatRequest(incarnation, running, known, MAX_WAIT_MS))
        except (Unreachable, Gone):
            return
        known = wanted.version
        slots = {i: {n: pid for n, pid in pids.items() if not _is_over(pid)} for i, pids in slots.items()}
        for job in wanted.jobs:
            at, mine = replace(place, job_id=job.id), slots.setdefault(job.id, {})
            for index in range(len(mine) + job.slots):
                if len(mine) < job.slots and index not in mine:
                    mine[index] = _fork(lambda i=index, at=at: _keep_slot(at, key, i))


def _drain(api: Api, instance_id: str, incarnation: str) -> None:
    """Leave once the slots have: the API tells each of them when."""
    from service.protocol import HeartbeatRequest

    api.leave_instance(instance_id, incarnation, drain=True)
    known = ""
    while _has_children():
        known = api.heartbeat(instance_id, HeartbeatRequest(incarnation, {}, known, DRAIN_WAIT_MS)).version
    api.leave_instance(instance_id, incarnation, drain=False)


def _keep_slot(place: SlotPlace, key: str, index: int) -> None:
    """One process after the other is the slot, until one ends by itself."""
    from spark_jobs.slot import run_slot

    while os.waitstatus_to_exitcode(os.waitpid(_fork(lambda: run_slot(place, key, index)), 0)[1]) != 0:
        pass


def _fork(work: Callable[[], None]) -> int:
    """A process that does this work and ends, at the latest with us; its id."""
    pid = os.fork()
    if pid:
        return pid
    daemon.die_with_parent()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        work()
        os._exit(0)
    except Exception:  # noqa: BLE001  the end of this process: nothing of the one that forked it may go on here
        traceback.print_exc()
        os._exit(1)


def _is_over(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


def _has_children() -> bool:
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


if __name__ == "__main__":
    main()

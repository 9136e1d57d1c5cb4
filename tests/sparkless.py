"""An instance without Spark, for tests of everything but Spark: a process whose slots are processes forked from it.

It speaks the same protocol and runs the same slots as `spark_jobs.instance`; a slot that is killed is started again, as
Spark does; on SIGTERM it drains. It ends with its parent, and when the API is gone. It is forked from a process that
has loaded what slots need (tests/forkserver.py). As a program it takes the API's URL, its key (in the environment, as
MILLRACE_API_KEY), a folder for replicas and its name.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from benchmarks.running import PATIENCE_S, Running, clean_environment
from service.protocol import MAX_WAIT_MS, HeartbeatRequest, JoinRequest
from spark_jobs import daemon
from spark_jobs.client import Api, Gone, SlotPlace, Unreachable
from spark_jobs.pulse import folder_of, signs_of_life
from spark_jobs.slot import run_slot

if TYPE_CHECKING:  # an instance has no need of the service's modules
    from tests.forkserver import Forked, ForkServer
    from tests.serving import Serving

DRAIN_WAIT_MS = 200  # of a heartbeat, while slots leave


@contextmanager
def instance(service: Serving, forks: ForkServer, replica_dir: Path, name: str = "sparkless") -> Iterator[Forked]:
    """An instance process of a service, until the block ends."""
    process = start(forks, service.url, service.secrets["instance"], replica_dir, name)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def start(
    forks: ForkServer,
    url: str,
    key: str,
    replica_dir: Path,
    name: str = "sparkless",
    environment: Mapping[str, str] | None = None,
) -> Forked:
    """An instance process of the API at `url`; its log is beside `replica_dir`. Does not wait for its join."""
    command = [sys.executable, "-m", "tests.sparkless", url, str(replica_dir), name]
    env = clean_environment({**(environment or {}), "MILLRACE_API_KEY": key})
    with (replica_dir.parent / f"{name}.log").open("ab") as log:
        return forks.popen(command, env=env, stdout=log, stderr=log)


class SparklessRunning(Running):
    """`millrace up` with an instance that comes and goes with it, as an embedded one would, but without Spark; both are
    forked.
    """

    def __init__(self, data_dir: Path, forks: ForkServer, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(data_dir, instances=0, environment=environment, popen=forks.popen)
        self._forks = forks
        self._instance: Forked

    def start(self, timeout_s: float = PATIENCE_S, *, port: int = 0) -> Self:
        """Start both; see `Running.start`."""
        super().start(timeout_s, port=port)
        self._instance = attach(self, self._forks)
        return self

    def stop(self, timeout_s: float = PATIENCE_S) -> int:
        """Have the slots commit and leave, then the service end; its exit code."""
        self._instance.terminate()
        self._instance.wait(timeout_s)
        return super().stop(timeout_s)


def attach(running: Running, forks: ForkServer, environment: Mapping[str, str] | None = None) -> Forked:
    """An instance process of a service that is a process itself, under a key of its own."""
    key = running.call("POST", "/v1/tokens", json={"role": "instance", "name": "sparkless"})["key"]
    return start(forks, running.url, key, running.data_dir / "replicas", environment=environment)


def main() -> None:
    """Join, and run what is wanted until killed, or until asked to leave."""
    url, replica_dir, name = sys.argv[1:]
    key = os.environ["MILLRACE_API_KEY"]
    incarnation = uuid.uuid4().hex
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with Api(url, key) as api:
        member = api.join_instance(JoinRequest(name, incarnation, "localhost", 2))
        place = SlotPlace(url, member.instance_id, member.storage_uri, Path(replica_dir), job_id="")
        try:
            _run_wanted(api, key, place, incarnation)
        except KeyboardInterrupt:
            _drain(api, place.instance_id, incarnation)


def _run_wanted(api: Api, key: str, place: SlotPlace, incarnation: str) -> None:
    """Heartbeats: each answer says what should run. Returns when the API is gone, or this instance for the API."""
    known, slots = "", dict[str, dict[int, int]]()  # job → index → process id
    while True:
        running = {job_id: len(pids) for job_id, pids in slots.items()}
        pulses = signs_of_life(folder_of(place.replica_dir, place.instance_id), 60.0)
        try:
            beat = HeartbeatRequest(incarnation, running, known, MAX_WAIT_MS, pulses=pulses)
            wanted = api.heartbeat(place.instance_id, beat)
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
    api.leave_instance(instance_id, incarnation, drain=True)
    known = ""
    while _has_children():
        known = api.heartbeat(instance_id, HeartbeatRequest(incarnation, {}, known, DRAIN_WAIT_MS)).version
    api.leave_instance(instance_id, incarnation, drain=False)


def _keep_slot(place: SlotPlace, key: str, index: int) -> None:
    """One process after the other is the slot, until one ends by itself."""
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

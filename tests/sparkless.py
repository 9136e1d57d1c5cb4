"""An instance without Spark, for tests of everything but Spark: a process whose slots are processes forked from it.

It speaks the same protocol and runs the same slots as `spark_jobs.instance`; a slot that is killed is started again, as
Spark does. Run as a program it takes the API's URL, its key (in the environment, as MILLRACE_API_KEY) and a folder for
replicas; it ends with its parent, and when the API is gone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from spark_jobs import daemon

if TYPE_CHECKING:  # what is imported before `daemon.load` may start threads, and then nothing can be forked
    from spark_jobs.client import SlotPlace
    from tests.serving import Serving

ROOT = Path(__file__).parents[1]


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


def main() -> None:
    """Join, and run what is wanted until killed."""
    url, replica_dir, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    daemon.die_with_parent()
    daemon.load()
    from service.protocol import MAX_WAIT_MS, HeartbeatRequest, JoinRequest
    from spark_jobs.client import Api, Gone, SlotPlace, Unreachable

    key, incarnation = os.environ["MILLRACE_API_KEY"], uuid.uuid4().hex
    slots: dict[str, list[int]] = {}
    with Api(url, key) as api:
        member = api.join_instance(JoinRequest(name, incarnation, "localhost", 2))
        known = ""
        while True:
            try:
                wanted = api.heartbeat(
                    member.instance_id,
                    HeartbeatRequest(incarnation, {i: len(s) for i, s in slots.items()}, known, MAX_WAIT_MS),
                )
            except (Unreachable, Gone):
                return
            known = wanted.version
            slots = {i: living for i, pids in slots.items() if (living := [pid for pid in pids if not _is_over(pid)])}
            for job in wanted.jobs:
                if job.id not in slots:
                    place = SlotPlace(url, member.instance_id, member.storage_uri, replica_dir, job.id)
                    slots[job.id] = [_fork(lambda i=i, at=place: _keep_slot(at, key, i)) for i in range(job.slots)]


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
    try:
        work()
        os._exit(0)
    except Exception:  # noqa: BLE001  the end of this process: nothing of the one that forked it may go on here
        traceback.print_exc()
        os._exit(1)


def _is_over(pid: int) -> bool:
    return os.waitpid(pid, os.WNOHANG)[0] == pid


if __name__ == "__main__":
    main()

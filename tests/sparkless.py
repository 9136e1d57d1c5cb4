"""An instance without Spark, for tests of everything but Spark: a process whose slots are threads.

It speaks the same protocol and runs the same slots as `spark_jobs.instance`. Run as a program it takes the API's URL,
its key (in the environment, as MILLRACE_API_KEY) and a folder for replicas; it ends with its parent.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from service.streams.kernels import warm
from spark_jobs.client import Api, Gone, Place, Unreachable
from spark_jobs.daemon import die_with_parent
from spark_jobs.slot import run_slot
from tests.serving import Serving

ROOT = Path(__file__).parents[1]


@contextmanager
def instance(service: Serving, replica_dir: Path, name: str = "sparkless") -> Iterator[subprocess.Popen[bytes]]:
    """An instance process of a service, until the block ends."""
    command = [sys.executable, "-m", "tests.sparkless", service.url, str(replica_dir), name]
    environment = {**os.environ, "MILLRACE_API_KEY": service.secrets["instance"], "PYTHONPATH": str(ROOT)}
    log = replica_dir.parent / f"{name}.log"
    with log.open("wb") as file:
        process = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=file, stderr=file)
    try:
        yield process
    finally:
        process.kill()
        process.wait(30)


def main() -> None:
    """Join, and run what is wanted until killed."""
    url, replica_dir, name = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    die_with_parent()
    warm()
    key, incarnation = os.environ["MILLRACE_API_KEY"], uuid.uuid4().hex
    threads: dict[str, list[threading.Thread]] = {}
    with Api(url, key) as api:
        member = api.join_instance({"name": name, "incarnation": incarnation, "host": "localhost", "cores": 2})
        known = ""
        while True:
            try:
                wanted = api.heartbeat(member.instance_id, incarnation, {i: len(t) for i, t in threads.items()}, known)
            except (Unreachable, Gone):
                return
            known = wanted.version
            threads = {i: alive for i, t in threads.items() if (alive := [one for one in t if one.is_alive()])}
            for job in wanted.jobs:
                if job.id not in threads:
                    place = Place(
                        url, key, member.instance_id, member.storage_uri, replica_dir, job.id, member.redis_url
                    )
                    slots = [threading.Thread(target=run_slot, args=(place, i), daemon=True) for i in range(job.slots)]
                    threads[job.id] = slots
                    for slot in slots:
                        slot.start()


if __name__ == "__main__":
    main()

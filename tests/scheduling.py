"""Which worker of `make test` runs what, and when: units of tests that share what is running, the longest first.

A unit is a file, but for folders whose tests share a service (`FOLDERS`), and for tests that share nothing (`APART`).
What waits for processes takes turns with what computes (`FIRST`), for there are more workers than cores. Units that are
not named there follow, as they were collected: they take seconds, so that all workers end at about the same time.
"""

from __future__ import annotations

from xdist.scheduler.loadscope import LoadScopeScheduling
from xdist.workermanage import WorkerController

FOLDERS = ("tests/chaos", "tests/e2e")
APART = (
    "tests/chaos/test_killed.py::test_ten_random_kills",
    "tests/chaos/test_several_apis.py::",
    "tests/integration/test_fuzzed_api.py::",
)
FILES = ("tests/e2e/test_demo.py", "tests/e2e/test_web_log_lookups.py")  # that share nothing with their folder
FIRST = (
    "tests/spark/test_standalone.py",
    "tests/spark/test_ends.py",
    "tests/integration/test_fuzzed_api.py",
    "tests/e2e",
    "tests/conformance/test_aggregate.py",
    "tests/chaos",
    "tests/property/test_aggregate.py",
    "tests/integration/test_slot_protocol.py",
    "tests/spark/test_instance.py",
    "tests/integration/test_stores_api.py",
    "tests/integration/test_jobs_api.py",
    "tests/integration/dashboard",
    "tests/property",
    "tests/integration/test_spark_slot.py",
    "tests/integration/catalog",
    "tests/integration",
)


class LongestFirst(LoadScopeScheduling):
    """The scheduler of pytest-xdist that gives away whole units, with units and an order of ours."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)

    def _assign_work_unit(self, node: WorkerController) -> None:
        self.workqueue.move_to_end(min(self.workqueue, key=rank_of), last=False)
        super()._assign_work_unit(node)


def unit_of(nodeid: str) -> str:
    """The unit of a test."""
    file = nodeid.partition("::")[0]
    if nodeid.startswith(APART):
        return nodeid
    return file if file in FILES else next((folder for folder in FOLDERS if file.startswith(f"{folder}/")), file)


def rank_of(unit: str) -> int:
    """The place in the queue; of equal ones those collected first go first."""
    return next((place for place, begin in enumerate(FIRST) if unit.startswith(begin)), len(FIRST))

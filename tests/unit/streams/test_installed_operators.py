"""An operator that is installed beside Millrace, that of docs/installed-operators.md: one module that all know of."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from service.streams.operators import GROUP
from service.streams.operators.declaration import DECLARED
from tests import strategies
from tests.installing import install, install_example
from tests.machine import Machine
from tests.property.test_suppress import parts_of

REPORT = """
import json, sys
from service.metric_families import OPERATOR_FAMILIES
from service.simulate.request import SimulateRequest
from service.simulate.run import simulate
from service.streams.operators import AVAILABLE
from service.streams.topology.spec import JobSpec
answer = simulate(SimulateRequest.model_validate(json.loads(sys.argv[1])))
kinds = JobSpec.model_json_schema()["$defs"]
families = [family.name for family in OPERATOR_FAMILIES]
print(json.dumps({"available": AVAILABLE, "answer": answer, "schema": "SampleSpec" in kinds, "families": families}))
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of packages in which the example is installed."""
    folder = tmp_path_factory.mktemp("site")
    install_example(folder, "installed-operators.md", GROUP)
    return folder


@pytest.fixture(scope="module")
def module(site: Path) -> Iterator[Any]:
    """The example in this process, which looked for installed operators before it was there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        yield importlib.import_module("shop_operators")
    sys.modules.pop("shop_operators")
    DECLARED.pop("sample")


def ran(site: Path, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A program in a process that finds what is installed there."""
    environment = {**os.environ, "PYTHONPATH": str(site)}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, env=environment, text=True, capture_output=True, check=False)


def sampling(module: Any, every: int) -> Machine:
    spec = module.SampleSpec(op="sample", name="s", every=every)
    return Machine(spec.runner("s", "fail", None))


def test_every_nth_record_of_a_key_goes_on(module: Any) -> None:
    machine = sampling(module, 2)
    records = [{"key": key, "value": {}, "timestamp": at} for at, key in enumerate("aababbac")]
    assert [out["timestamp"] for out in machine.feed(*records)] == [1, 4, 6]
    assert machine.dropped() == [("not_sampled", at) for at in (0, 2, 3, 5, 7)]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=strategies.records, sizes=strategies.batch_sizes, every=st.integers(1, 4))
def test_every_cut_gives_the_same(module: Any, records: Any, sizes: Any, every: int) -> None:
    whole, parts = sampling(module, every), sampling(module, every)
    expected = whole.feed(*records)
    assert [out for part in parts_of(records, sizes) for out in parts.feed(*part)] == expected
    assert parts.state == whole.state


def test_jobs_simulations_lookups_and_metrics_know_it(site: Path) -> None:
    records = [{"key": "ab"[at % 2], "value": {"n": at}, "timestamp": at} for at in range(7)]
    job = {"operators": [{"op": "sample", "name": "second", "every": 2}]}
    done = ran(site, REPORT, json.dumps({"job": job, "records": records}))
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert "sample" in found["available"]
    assert found["schema"]
    assert "sample_let_through" in found["families"]
    assert [out["value"]["n"] for out in found["answer"]["outputs"]] == [2, 3, 6]
    assert [(item["key"], item["value"]) for item in found["answer"]["stores"]["x-second"]] == [
        ("a", {"seen": 4}),
        ("b", {"seen": 3}),
    ]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("broken_ones:Gone", "The installed operator broken_ones:Gone can not be loaded"),
        ("broken_ones:Plain", "The installed operator broken_ones:Plain is not under @operator"),
        ("broken_ones:Taken", "'filter' is declared by service.streams.operators.filter already"),
    ],
)
def test_one_that_can_not_be_used_stops_the_process_and_is_named(tmp_path: Path, value: str, why: str) -> None:
    code = "class Plain: pass\n"
    if value.endswith("Taken"):
        code = (
            "from typing import Literal\n"
            "from service.streams.operators.declaration import OperatorSpec, operator\n"
            "@operator\nclass Taken(OperatorSpec):\n    op: Literal['filter']\n"
        )
    install(tmp_path, "broken-ones", "0.2", code, GROUP, {"broken": value})
    done = ran(tmp_path, "import service.streams.operators")
    assert done.returncode != 0
    assert why in done.stderr

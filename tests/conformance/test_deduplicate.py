"""deduplicate.jsonl through every engine that runs without a server, whole and cut."""

import itertools

import pytest

from service.simulate import SimulateRequest, simulate
from tests import naive
from tests.conformance import given
from tests.conformance.given import load
from tests.task import Task, cut, job, run_all

CASES = load("deduplicate")


@pytest.mark.parametrize("case", given.each(CASES))
def test_the_oracle_gives_the_outputs(case):
    assert naive.run(case["job"]["operators"], case["records"]) == case["outputs"]


@pytest.mark.parametrize(("case", "batch_records"), given.cut(CASES))
def test_the_chain_gives_the_outputs(case, batch_records):
    sizes = itertools.repeat(batch_records or len(case["records"]))
    task = Task(job(case["job"]["operators"]), forget=True)
    assert run_all(task, cut(case["records"], sizes)) == case["outputs"]


@pytest.mark.parametrize(("case", "batch_records"), given.simulated(CASES))
def test_simulate_gives_the_outputs(case, batch_records):
    body = {"job": case["job"], "records": case["records"], "batch_records": batch_records}
    answer = simulate(SimulateRequest.model_validate(body))
    expected = [{"stream": "out", "partition": 0, **output} for output in case["outputs"]]
    assert answer["outputs"] == expected

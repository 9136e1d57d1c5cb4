"""Every case of tumbling, hopping, session, sliding and table through every engine that runs without a server."""

import itertools
import json

import pytest

from service.simulate import SimulateRequest, simulate
from tests import naive, naive_windows
from tests.conformance import given
from tests.conformance.given import load, promised
from tests.task import Task, cut, job, outputs

FAMILIES = ("table", "tumbling", "hopping", "session", "sliding")
CASES = [case for family in FAMILIES for case in load(family)]
EACH = pytest.mark.parametrize("case", given.each(CASES))


@EACH
def test_the_oracle_gives_the_outputs(case):
    assert naive.run(case["job"]["operators"], case["records"]) == promised(case)


@EACH
def test_the_oracle_drops_as_many_records_per_window(case):
    machine = naive_windows.Aggregate(case["job"]["operators"][0], naive.EXPRESSIONS)
    for record in case["records"]:
        machine.feed({"window": None, **record})
    assert len(machine.dropped) == case["dropped_total"]


@pytest.mark.parametrize(("case", "batch_records"), given.cut(CASES))
def test_the_chain_gives_the_outputs_and_drops_as_many(case, batch_records):
    sizes = itertools.repeat(batch_records or len(case["records"]))
    task = Task(job(case["job"]["operators"]), forget=True)
    results = [task.run(batch) for batch in cut(case["records"], sizes)]
    assert [record for result in results for record in outputs(result)] == promised(case)
    dropped = [each for result in results for each in result.dropped if each.operator == "agg"]
    assert sum(each.rows.num_rows for each in dropped) == case["dropped_total"]


@pytest.mark.parametrize(("case", "batch_records"), given.simulated(CASES))
def test_simulate_gives_the_outputs(case, batch_records):
    body = {"job": case["job"], "records": case["records"], "batch_records": batch_records}
    answer = simulate(SimulateRequest.model_validate(body))
    json.dumps(answer)
    assert answer["outputs"] == [{"stream": "out", "partition": 0, **output} for output in promised(case)]


def test_one_case_alone_has_a_window_with_two_finals():
    """There Kafka Streams emits at the very time at which the window still takes records, and once more after that.

    Ours says each final once (semantics.md, Suppress): the last.
    """
    assert [case["name"] for case in CASES if promised(case) != case["outputs"]] == ["sliding-suppress-final-001"]

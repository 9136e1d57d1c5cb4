"""Operators are deterministic functions of (state, ordered records): equal to the oracle, however they are run."""

from hypothesis import given
from hypothesis import strategies as st

from tests import naive, strategies
from tests.task import Task, batch_of, check_replay, cut, job, outputs, parts, run_all


@given(strategies.deduplications(), strategies.records)
def test_deduplicate_equals_the_oracle(operator, records):
    task = Task(job([operator]))
    assert run_all(task, [batch_of(records)]) == naive.run([operator], records)


@given(strategies.chains(), strategies.records)
def test_a_chain_equals_the_oracle(operators, records):
    task = Task(job(operators))
    assert run_all(task, [batch_of(records)]) == naive.run(operators, records)


@given(strategies.chains(), strategies.records, strategies.batch_sizes, st.booleans())
def test_any_cut_into_batches_gives_the_same_output_and_state(operators, records, sizes, forget):
    whole, parts = Task(job(operators)), Task(job(operators), forget=forget)
    assert run_all(parts, cut(records, sizes)) == run_all(whole, [batch_of(records)])
    if not forget:
        assert parts.states == whole.states


@given(strategies.chains(), strategies.records, strategies.batch_sizes, st.data())
def test_a_replay_from_any_commit_continues_as_if_nothing_had_happened(operators, records, sizes, data):
    topology = job(operators)
    batches = cut(records, sizes)
    check_replay(topology, batches, crash=data.draw(st.integers(0, len(batches))))


@given(strategies.chains(), strategies.record_lists(failing=True), strategies.batch_sizes)
def test_records_whose_expressions_fail_drop_out_before_their_operator(operators, records, sizes):
    expected = naive.run(operators, records, drop_failing=True)
    kept = [Task(job(operators), on_error=on_error) for on_error in ("drop", "dead_letter")]
    results = [[result for batch in cut(records, sizes) for result in parts(task, batch)] for task in kept]
    for found in results:
        assert [out for result in found for out in outputs(result)] == expected
    dropped, dead = ([each for result in found for each in result.dropped] for found in results)
    assert [(each.operator, each.reason, each.rows) for each in dead] == [
        (each.operator, each.reason, each.rows) for each in dropped
    ]
    assert all(each.errors is None for each in dropped)
    for each in dead:
        assert (each.errors is not None) == (each.reason == "expression_failed")
        assert all("x" in error for error in each.errors or ())

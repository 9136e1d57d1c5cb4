"""The border of one task: what may pass is tried again, what lasts is reported, and nothing gets out."""

from __future__ import annotations

import time
from typing import Any

import pyarrow as pa
import pytest
import structlog

from service.protocol import AssignedTask, InputHead, InputRange, StreamRef, TaskError
from service.streams.errors import ExpressionFailed, SegmentDamaged, SegmentMissing, SuppressionFull
from spark_jobs.border import TaskBorder
from spark_jobs.client import Gone, Refused, Unreachable
from spark_jobs.failures import TASK_PAUSES_S, Failures
from spark_jobs.tasks import StreamTask

STREAMS = {"clicks": StreamRef("clicks-id", 2), "other": StreamRef("other-id", 4)}


def no_chain() -> Any:
    raise AssertionError("nothing is run here")


def task(*, is_reading: bool = True, end: int = 9) -> StreamTask:
    heads = [InputHead("other-id", 0, 0, 9), InputHead("clicks-id", 1, 0, end)]
    work = [InputRange(1, 0, end, [])] if is_reading else []
    return StreamTask(AssignedTask("t", "0_1", 0, 1, 1, 0, inputs=heads, work=work), {}, no_chain)


class Reports:
    """What the API was told of."""

    def __init__(self, answer: Exception | None = None) -> None:
        self.found: list[TaskError] = []
        self.answer = answer

    def take(self, _: StreamTask, error: TaskError) -> None:
        self.found.append(error)
        if self.answer is not None:
            raise self.answer

    def border(self) -> TaskBorder:
        return TaskBorder(self.take, STREAMS, structlog.get_logger())


def fail(border: TaskBorder, task: StreamTask, error: Exception) -> None:
    with border.around(task):
        raise error


def test_what_may_pass_is_tried_again_after_a_while() -> None:
    reports, one = Reports(), task()
    before_s = time.monotonic()
    fail(reports.border(), one, OSError("the disk"))
    assert (one.failures.count, one.has_failed, reports.found) == (1, False, [])
    assert before_s < one.failures.not_before_s <= time.monotonic() + TASK_PAUSES_S[0]


def test_what_lasts_fails_the_job() -> None:
    reports, one = Reports(), task()
    for _ in range(len(TASK_PAUSES_S) + 1):
        assert not one.has_failed
        fail(reports.border(), one, SegmentMissing("segments/x"))
    assert one.has_failed
    (found,) = reports.found
    assert (found.code, found.stream, found.partition) == ("segment_missing", "clicks", 1)


def test_without_memory_a_task_reads_less_and_says_so_in_the_end() -> None:
    reports, one = Reports(), task(end=4**6)
    read = []
    while not one.has_failed:
        fail(reports.border(), one, pa.ArrowMemoryError("malloc of size 1 failed"))
        read.append(one.most)
    assert read == [4**5, 4**4, 4**3, 4**2, 4]
    (found,) = reports.found
    assert (found.code, found.stream, found.partition) == ("out_of_memory", "clicks", 1)


def test_what_fits_into_memory_grows_slowly_again() -> None:
    one = task(end=1_000_000)
    fail(Reports().border(), one, MemoryError())
    read = [one.most]
    for _ in range(3):
        one.note_run(None, 0.01)
        read.append(one.most)
    assert read == [2_500, 2_812, 3_163, 3_558]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ZeroDivisionError("a bug"), "internal_error"),
        (SegmentDamaged("segments/x", "torn"), "segment_damaged"),
        (ExpressionFailed("positive", 0, "no number"), "expression_failed"),
    ],
)
def test_what_no_attempt_will_mend_fails_the_job_at_once(error: Exception, code: str) -> None:
    reports, one = Reports(), task()
    fail(reports.border(), one, error)
    assert one.has_failed
    (found,) = reports.found
    assert (found.code, found.stream, found.partition) == (code, "clicks", 1)


def test_the_record_and_the_operator_are_named() -> None:
    reports = Reports()
    fail(reports.border(), task(), ExpressionFailed("positive", 0, "no number").located("other-id", 3, 7))
    (found,) = reports.found
    assert (found.operator, found.detail) == ("positive", "no number")
    assert (found.stream, found.partition, found.offset) == ("other", 3, 7)


def test_how_full_a_buffer_is_is_named() -> None:
    reports = Reports()
    fail(reports.border(), task(is_reading=False), SuppressionFull("hold", None, 5, 4, 100, None))
    (found,) = reports.found
    assert (found.records, found.max_records, found.bytes, found.max_bytes) == (5, 4, 100, None)
    assert (found.stream, found.partition) == (None, None)


def test_what_concerns_the_api_gets_out() -> None:
    reports, one = Reports(), task()
    with pytest.raises(Unreachable):
        fail(reports.border(), one, Unreachable("no answer"))
    assert (one.failures.count, reports.found) == (0, [])


def test_of_a_task_that_is_somebody_elses_nobody_needs_to_hear() -> None:
    reports, one = Reports(Refused(409, "stale_epoch", "no")), task()
    fail(reports.border(), one, ZeroDivisionError("a bug"))
    assert one.has_failed


def test_a_slot_that_is_gone_hears_of_it_at_the_next_poll() -> None:
    reports, one = Reports(Gone(410, "instance_gone", "no")), task()
    fail(reports.border(), one, ZeroDivisionError("a bug"))
    assert one.has_failed


def test_pauses_grow_to_the_last_one_and_end_with_success() -> None:
    failures = Failures((0.5, 1.0))
    assert [failures.note() for _ in range(4)] == [0.5, 1.0, 1.0, 1.0]
    assert failures.is_lasting
    failures.clear()
    assert (failures.is_lasting, failures.note()) == (False, 0.5)

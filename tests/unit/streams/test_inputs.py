"""The inputs of a task: the order in which records are taken, where each came from, how far each input is read."""

import numpy as np
import pyarrow as pa
import pytest

from service.streams import inputs
from service.streams.inputs import NO_CAUSE, Input, InputPosition, Origins, Part, Unread, batch_of, codes, word_of
from tests.task import rows_of

ONE, OTHER = Input("one", 0), Input("other", 3)


def part(offsets, *times):
    """Records with these timestamps; each has its offset as its key, given that of the first or those of all."""
    places = range(offsets, offsets + len(times)) if isinstance(offsets, int) else offsets
    records = [{"key": str(at), "value": None, "timestamp": time} for at, time in zip(places, times, strict=True)]
    rows = rows_of(records).select(range(6))
    return Part(rows, offsets if isinstance(offsets, int) else np.array(offsets))


def unread(which, start, end, *parts, frontier=-1):
    return Unread(which, InputPosition(start, frontier), end, parts)


def origins(batch):
    return [batch.origins.origin(ordinal) for ordinal in batch.rows.column("ordinal").to_pylist()]


def offsets(batch):
    return [(origin.input.stream_id, origin.offset) for origin in origins(batch)]


def test_rows_of_consecutive_chunks_know_their_offsets():
    batch = batch_of([unread(ONE, 100, 104, part(100, 1, 2), part(102, 3, 4))])
    assert batch.rows.column("ordinal").to_pylist() == [0, 1, 2, 3]
    assert offsets(batch) == [("one", 100), ("one", 101), ("one", 102), ("one", 103)]
    assert batch.origins.words(np.arange(4)).tolist() == [100, 101, 102, 103]


def test_gaps_between_chunks_and_within_a_sparse_one_are_passed():
    batch = batch_of([unread(ONE, 5, 90, part(5, 1, 2), part([10, 11, 30], 3, 4, 5), part(80, 6))])
    assert [offset for _, offset in offsets(batch)] == [5, 6, 10, 11, 30, 80]
    assert batch.positions(0) == [InputPosition(5, -1)]
    assert batch.positions(2) == [InputPosition(10, 2)]
    assert batch.positions(4) == [InputPosition(30, 4)]
    assert batch.positions(6) == [InputPosition(90, 6)]


def test_a_batch_without_records_moves_its_input_to_the_end():
    batch = batch_of([unread(ONE, 5, 9, frontier=7)])
    assert (batch.rows.num_rows, batch.positions(0)) == (0, [InputPosition(9, 7)])


def test_skipped_records_are_left_out_and_passed_and_others_keep_their_ordinals():
    batch = batch_of([unread(ONE, 0, 4, part(0, 1, 2, 3, 4))], [(0, 1), (0, 3), (0, 99)])
    assert batch.rows.column("ordinal").to_pylist() == [0, 2]
    assert [offset for _, offset in offsets(batch)] == [0, 2]
    assert batch.positions(1) == [InputPosition(2, 1)]
    assert batch.positions(2) == [InputPosition(4, 3)]


def test_a_skip_concerns_one_input():
    batch = batch_of([unread(ONE, 0, 2, part(0, 1, 2)), unread(OTHER, 0, 2, part(0, 1, 2))], [(1, 0)])
    assert sorted(offsets(batch)) == [("one", 0), ("one", 1), ("other", 1)]


def test_the_rest_of_a_batch_knows_where_it_begins():
    batch = batch_of([unread(ONE, 5, 9, part(5, 3, 9, 1, 2))]).rest(2)
    assert [offset for _, offset in offsets(batch)] == [7, 8]
    assert (batch.starts, batch.positions(1)) == ([InputPosition(7, 9)], [InputPosition(8, 9)])


def test_inputs_are_aligned_by_the_time_each_has_reached_then_by_number_then_by_offset():
    batch = batch_of(
        [unread(ONE, 0, 4, part(0, 5, 3, 8, 9)), unread(OTHER, 0, 4, part(0, 1, 5, 6, 8), frontier=2)],
    )
    # reached: one 5 5 8 9, other 2 5 6 8
    assert offsets(batch) == [
        ("other", 0),
        ("one", 0),
        ("one", 1),
        ("other", 1),
        ("other", 2),
        ("one", 2),
        ("other", 3),
        ("one", 3),
    ]


def test_positions_of_several_inputs_are_a_vector():
    batch = batch_of([unread(ONE, 0, 4, part(0, 5, 3, 8, 9)), unread(OTHER, 7, 20, part([7, 9, 11], 1, 5, 6))])
    assert [batch.positions(taken) for taken in (0, 2, 7)] == [
        [InputPosition(0, -1), InputPosition(7, -1)],
        [InputPosition(1, 5), InputPosition(9, 1)],
        [InputPosition(4, 9), InputPosition(20, 6)],
    ]


def test_words_of_the_first_input_are_its_offsets_and_those_of_others_tell_the_input():
    batch = batch_of([unread(ONE, 3, 4, part(3, 1)), unread(OTHER, 3, 4, part(3, 1))])
    assert batch.origins.words(np.array([0, 1, NO_CAUSE])).tolist() == [3, (1 << 47) + 3, NO_CAUSE]


@pytest.mark.parametrize(("number", "offset"), [(0, 0), (0, 7), (0, inputs.MAX_OFFSET), (65_535, 1), (1, 0)])
def test_an_origin_that_was_stored_is_known_without_its_batch(number, offset):
    word = word_of(number, offset)
    [code] = codes(np.array([word])).tolist()
    assert code < NO_CAUSE
    later = Origins.none([ONE] * number + [OTHER])
    assert later.words(np.array([code])).tolist() == [word]
    assert later.origin(code) == (OTHER, offset)
    assert later.origin(NO_CAUSE) is None


def test_no_cause_stays_what_it_is_when_it_is_stored():
    assert codes(np.array([NO_CAUSE])).tolist() == [NO_CAUSE]


def test_more_inputs_than_a_word_can_tell_apart_are_refused():
    with pytest.raises(ValueError, match="65536"):
        batch_of([unread(ONE, 0, 0)] * 65_537)


def test_one_chunk_is_not_copied():
    given = part(0, 1, 2, 3)
    rows = batch_of([unread(ONE, 0, 3, given)]).rows
    assert rows.column("timestamp").buffers()[1].address == given.records.column("timestamp").buffers()[1].address
    assert isinstance(rows, pa.RecordBatch)


def held(number, times, aligned_at=None, bound=None, frontier=-1, start=0):
    """All of an input, by the place of its stream; `times` are timestamps, or those at which its source task was."""
    records = part(start, *times)._replace(aligned_at=None if aligned_at is None else np.array(aligned_at))
    return Unread(Input(f"in-{number}", 0), InputPosition(start, frontier), start + len(times), [records], bound)


def taken(batch):
    return [(int(origin.input.stream_id[3:]), origin.offset) for origin in origins(batch)]


def test_records_run_as_far_as_nothing_can_come_before_them():
    batch = batch_of([held(0, [10, 30, 20, 40], bound=25), held(1, [15, 50], bound=None)])
    assert taken(batch) == [(0, 0), (1, 0), (0, 1), (0, 2), (0, 3)]  # of input 0 nothing below 40 can come any more
    assert batch.positions(5) == [InputPosition(4, 40), InputPosition(1, 15)]
    assert [at.offset for at in batch.positions(2)] == [1, 1]


def test_an_input_that_was_read_to_its_end_holds_back_what_is_behind_its_bound():
    behind = batch_of([held(0, [10, 30, 31]), held(1, [], bound=30, frontier=20)])
    assert taken(behind) == [(0, 0), (0, 1)]  # where they are equal the lower number comes first
    assert taken(batch_of([held(0, [], bound=30, frontier=20), held(1, [10, 30])])) == [(1, 0)]


def test_nothing_runs_while_an_input_may_bring_something_earlier():
    batch = batch_of([held(0, [], bound=4, frontier=4), held(1, [5, 6], bound=None)])
    assert (batch.rows.num_rows, batch.ready) == (0, 0)
    assert batch.positions(0) == [InputPosition(0, 4), InputPosition(0, -1)]


def test_records_of_a_repartition_stream_are_taken_by_how_far_their_source_task_was():
    batch = batch_of([held(0, [5, 6], [100, 101]), held(1, [7, 8], [99, 100])])
    assert taken(batch) == [(1, 0), (0, 0), (1, 1), (0, 1)]
    assert batch.positions(2) == [InputPosition(1, 100), InputPosition(1, 99)]
    assert batch.reached(np.array([0, 2, NO_CAUSE])).tolist() == [99, 100, 100]


def test_a_task_has_come_as_far_as_anything_that_it_has_read():
    (one,) = [batch_of([held(0, [5, 3, 9], frontier=4)])]
    assert one.reached(np.array([0, 1, 2])).tolist() == [5, 5, 9]
    assert one.reached(np.array([NO_CAUSE])).tolist() == [4]
    assert one.rest(1).reached(np.array([1, 2])).tolist() == [5, 9]


def test_what_waits_is_read_again_from_its_first_row():
    batch = batch_of([held(0, [1, 2, 3], bound=None, start=7), held(1, [2], bound=2)], [(0, 8)])
    assert taken(batch) == [(0, 7), (1, 0)]
    assert [at.offset for at in batch.positions(2)] == [9, 1]

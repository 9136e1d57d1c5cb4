"""What holds of cores that are shared between jobs, whatever the instances and jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from service.streams.assignment.sharing import Claim, InstanceCores, share_out, slots_on

Key = tuple[str, str]


@st.composite
def places(draw: st.DrawFn, most: int = 4, cores: int = 6) -> list[InstanceCores]:
    """Instances whose cores are counted, and others."""
    found = []
    for number in range(draw(st.integers(0, most))):
        of_it = draw(st.integers(0, cores))
        found.append(
            InstanceCores(f"i{number}", of_it, of_it if draw(st.booleans()) else of_it + draw(st.integers(0, 8)))
        )
    return found


@st.composite
def claims(draw: st.DrawFn, most: int = 6, tasks: int = 9) -> list[Claim]:
    each = st.none() | st.integers(1, 4)
    return [Claim(f"j{n}", draw(st.integers(1, tasks)), draw(each)) for n in range(draw(st.integers(0, most)))]


def held_by(draw: st.DrawFn, places: Sequence[InstanceCores], claims: Sequence[Claim], most: int = 6) -> dict[Key, int]:
    """Anything, of jobs and instances that are gone too."""
    jobs, at = [*(job.id for job in claims), "gone"], [*(place.id for place in places), "away"]
    keys = draw(st.sets(st.tuples(st.sampled_from(jobs), st.sampled_from(at)), max_size=8))
    return {key: draw(st.integers(0, most)) for key in sorted(keys)}


def by_job(shares: Mapping[Key, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (job, _), slots in shares.items():
        found[job] += slots
    return found


def by_place(shares: Mapping[Key, int]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (_, at), slots in shares.items():
        found[at] += slots
    return found


def limits(at: Sequence[InstanceCores], jobs: Sequence[Claim]) -> dict[Key, int]:
    return {(job.id, place.id): slots_on(place.cores, job.on_each, job.most) for job, place in product(jobs, at)}


@given(st.data())
def test_nobody_gets_more_than_there_is_and_more_than_it_can_use(data: st.DataObject) -> None:
    at, jobs = data.draw(places()), data.draw(claims())
    shares = share_out(at, jobs, held_by(data.draw, at, jobs))
    most, loads, totals = limits(at, jobs), by_place(shares), by_job(shares)
    assert all(0 < slots <= most[key] for key, slots in shares.items())
    assert all(loads[place.id] <= place.room for place in at)
    assert all(totals[job.id] <= job.most for job in jobs)


@given(st.data())
def test_each_job_has_one_before_any_has_two_and_no_core_is_left_that_somebody_could_use(data: st.DataObject) -> None:
    at, jobs = data.draw(places()), data.draw(claims())
    shares = share_out(at, jobs, held_by(data.draw, at, jobs))
    most, loads, totals = limits(at, jobs), by_place(shares), by_job(shares)
    room = sum(place.room for place in at if place.cores)
    assert sum(total > 0 for total in totals.values()) == min(len(jobs), room)
    for job, place in product(jobs, at):
        if totals[job.id] == job.most or shares.get((job.id, place.id), 0) == most[job.id, place.id]:
            continue
        assert loads[place.id] == place.room
        there = [other.id for other in jobs if shares.get((other.id, place.id))]
        assert all(totals[other] <= totals[job.id] + 1 for other in there), "somebody has two more"


@given(st.data())
def test_who_is_asked_again_answers_the_same(data: st.DataObject) -> None:
    at, jobs = data.draw(places()), data.draw(claims())
    shares = share_out(at, jobs, held_by(data.draw, at, jobs))
    assert share_out(at, jobs, shares) == shares
    assert share_out(at[::-1], jobs[::-1], shares) == shares


@given(st.data())
def test_a_job_that_comes_takes_from_others_only_what_it_gets(data: st.DataObject) -> None:
    at, jobs = data.draw(places().filter(bool)), data.draw(claims())
    counted = [place._replace(room=place.cores) for place in at]
    before = share_out(counted, jobs, {})
    comer = Claim("new", data.draw(st.integers(1, 9)))
    after = share_out(counted, [*jobs, comer], before)
    started = Counter({key: slots - before.get(key, 0) for key, slots in after.items() if key[0] != comer.id})
    assert sum(slots for slots in started.values() if slots > 0) <= by_job(after)[comer.id]
    if not any(place.cores for place in at) or not jobs:
        return
    assert (by_job(after)[comer.id] > 0) == (sum(place.cores for place in at) > len(jobs))


def allocations(at: Sequence[InstanceCores], jobs: Sequence[Claim]) -> Iterator[dict[Key, int]]:
    """All that are allowed."""
    most = limits(at, jobs)
    for chosen in product(*(range(limit + 1) for limit in most.values())):
        shares = dict(zip(most, chosen, strict=True))
        totals, loads = by_job(shares), by_place(shares)
        if all(totals[job.id] <= job.most for job in jobs) and all(loads[place.id] <= place.room for place in at):
            yield shares


def started(shares: Mapping[Key, int], held: Mapping[Key, int]) -> int:
    return sum(max(0, slots - held.get(key, 0)) for key, slots in shares.items())


def unevenness(shares: Mapping[Key, int]) -> int:
    return sum(slots**2 for slots in shares.values())


@given(st.data())
def test_no_other_way_to_share_as_evenly_starts_fewer_slots(data: st.DataObject) -> None:
    at = [place._replace(room=place.cores) for place in data.draw(places(most=2, cores=3))]
    jobs = [job._replace(on_each=None) for job in data.draw(claims(most=3, tasks=3))]
    held = held_by(data.draw, at, jobs, most=3)
    shares = share_out(at, jobs, held)
    totals = by_job(shares)
    rivals = [each for each in allocations(at, jobs) if all(by_job(each)[job.id] == totals[job.id] for job in jobs)]
    assert unevenness(shares) == min(map(unevenness, rivals), default=0)
    as_even = [each for each in rivals if unevenness(each) == unevenness(shares)]
    assert started(shares, held) == min((started(each, held) for each in as_even), default=0)

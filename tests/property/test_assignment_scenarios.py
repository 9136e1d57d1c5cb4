"""300 groups that grow, shrink, crash and come back: what the assignor costs, beside Kafka Streams' own."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

from service.assignment_cases import answer
from tests.playing import Json, Play, scenarios

NONE = ["cold", "short", "zones", "unstable"]
# Of Kafka's total, at most (docs/adr/0018).
BARS = {
    "moved": 0.35,
    "rounds": 0.7,
    "copied": 0.7,
    "restored": 1.05,
    "exposed": 1.05,
    "spread": 1.05,
    "sub_spread": 1.05,
    "standby_spread": 1.05,
    "stateless_spread": 1.05,
}


def totals(played: list[Json]) -> tuple[Counter[str], Counter[str]]:
    ours: Counter[str] = Counter()
    kafka: Counter[str] = Counter()
    for scenario in played:
        ours.update(Play(scenario, lambda case: answer(orjson.dumps(case))).run())
        kafka.update(scenario["cost"])
    return ours, kafka


def test_nothing_starts_cold_and_no_standby_is_missing() -> None:
    ours, _ = totals(scenarios()[::20])
    assert {name: ours[name] for name in NONE} == dict.fromkeys(NONE, 0)


@pytest.mark.thorough
def test_groups_cost_less_than_with_kafka_streams() -> None:
    ours, kafka = totals(scenarios())
    table = {name: f"{ours[name]:,} of {kafka[name]:,}: {ours[name] / kafka[name]:.3f}" for name in BARS}
    assert {name: ours[name] for name in NONE} == dict.fromkeys(NONE, 0)
    assert not {name: table[name] for name, bar in BARS.items() if ours[name] > bar * kafka[name]}


def test_an_assignor_that_breaks_a_rule_is_refused() -> None:
    def everything_on_the_first(case: Json) -> Json:
        first = case["members"][0]["id"]
        return {"active": {first: case["tasks"]}, "standby": {first: case["stateful"]}, "probing": False}

    with pytest.raises(AssertionError, match="beside its active"):
        Play(scenarios()[0], everything_on_the_first).run()

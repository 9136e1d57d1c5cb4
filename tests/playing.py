"""Groups that grow, shrink and crash, played round by round over an assignor: what it costs is counted, what is not
allowed is refused.

In a round the assignor is shown who is there, what runs where and how far each copy is; its answer is carried out at
once. Then copies that are kept catch up by SPEED records, others fall AGE behind and are deleted after KEEP rounds. A
round follows every event, and more follow until the answer asks for no other and changes nothing.

Counted: `cold` (a task that starts where its copy is too far behind while another is not), `restored` (records
replayed before a task could run), `copied` (records replayed by standbys and warm-ups), `moved` (running tasks that
changed their node), `rounds`, `exposed` (task-rounds that end without a wanted standby that is caught up), `unstable`
(no end found); and at the end `spread`, `standby_spread` and `stateless_spread` (most minus least a slot), `sub_spread`
(the same in the worst sub-topology, in tasks, where all nodes have equal slots), `short` (standbys missing) and `zones`
(copies of a task that share a value of a rack tag though they need not).
"""

from __future__ import annotations

import gzip
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

FULL, SPEED, AGE, KEEP, MAX_ROUNDS = 1_000_000, 400_000, 30_000, 5, 40
Json = dict[str, Any]
Assignor = Callable[[Json], Json]
SETTINGS = "standby_replicas", "acceptable_recovery_lag", "max_warmup_replicas", "rack_tags"


def scenarios() -> list[Json]:
    """300 groups, each with what Kafka Streams' own HighAvailabilityTaskAssignor costs in it (`cost`)."""
    file = Path(__file__).parent / "data" / "kafka-assignments.jsonl.gz"
    return [json.loads(line) for line in gzip.decompress(file.read_bytes()).splitlines()]


class Play:
    """One scenario over one assignor, which takes a case and gives an answer of `millrace assign`."""

    def __init__(self, scenario: Json, assignor: Assignor) -> None:
        self.scenario, self.assignor = scenario, assignor
        self.members: dict[str, Json] = scenario["members"]
        subs = [(group, count, has_state) for group, count, has_state in scenario["sub_topologies"]]
        self.tasks = [f"{group}_{partition}" for group, count, _ in subs for partition in range(count)]
        self.stateful = [
            f"{group}_{partition}" for group, count, has_state in subs if has_state for partition in range(count)
        ]
        self.live = set(scenario["start"])
        self.lags: dict[str, dict[str, int]] = {member: {} for member in self.members}
        self.held: dict[str, set[str]] = {member: set() for member in self.members}
        self.owner: dict[str, str] = {}
        self.idle: Counter[tuple[str, str]] = Counter()
        self.cost: Counter[str] = Counter()

    def run(self) -> Counter[str]:
        """What it costs; the first start is free, for there is nothing to restore."""
        self.settle(MAX_ROUNDS)
        self.cost.clear()
        for event in self.scenario["events"]:
            member = event["member"]
            if event["event"] in {"join", "back"}:
                self.live.add(member)
            else:
                self.live.discard(member)
                self.held[member] = set()
                self.owner = {task: owner for task, owner in self.owner.items() if owner != member}
            self.settle(1 + event["rounds_before"])
        self.settle(MAX_ROUNDS)
        self.balance()
        self.domains()
        return self.cost

    def settle(self, limit: int) -> None:
        for _ in range(limit):
            if not self.round():
                return
        self.cost["unstable"] += limit == MAX_ROUNDS

    @property
    def wanted(self) -> int:
        return min(self.scenario["standby_replicas"], len(self.live) - 1)

    def case(self) -> Json:
        members = [
            {
                "id": member,
                **self.members[member],
                "active": sorted(task for task in self.tasks if self.owner.get(task) == member),
                "lags": {t: lag for t, lag in sorted(self.lags[member].items()) if self.owner.get(t) != member},
            }
            for member in sorted(self.live)
        ]
        settings = {name: self.scenario[name] for name in SETTINGS}
        return {"assignor": "ha", "members": members, "tasks": self.tasks, "stateful": self.stateful, **settings}

    def round(self) -> bool:
        """Ask, check, carry out. Whether there is to be another."""
        answer = self.assignor(self.case())
        self.cost["rounds"] += 1
        where = {task: member for member, tasks in answer["active"].items() for task in tasks}
        held = {member: set(answer["standby"].get(member, [])) for member in self.live}
        self.check(answer, where, held)
        is_changed = where != self.owner or any(held[member] != self.held[member] for member in self.live)
        for task, member in where.items():
            if self.owner.get(task) != member:
                self.hand_over(task, member)
        self.held.update(held)
        self.replay()
        self.cost["exposed"] += sum(max(0, self.wanted - self.ready(task)) for task in self.stateful)
        return is_changed or answer["probing"]

    def check(self, answer: Json, where: dict[str, str], held: dict[str, set[str]]) -> None:
        assert sum(map(len, answer["active"].values())) == len(where), "a task runs twice"
        assert set(where) == set(self.tasks), "a task runs nowhere"
        assert set(where.values()) <= self.live, "a member is not there"
        for member, tasks in held.items():
            assert tasks <= set(self.stateful), "a task without state has a standby"
            assert not any(where[task] == member for task in tasks), "a standby is beside its active"
        copies = Counter(task for tasks in held.values() for task in tasks)
        warm_ups = sum(max(0, count - self.wanted) for count in copies.values())
        assert warm_ups <= self.scenario["max_warmup_replicas"], "too many warm-ups"

    def hand_over(self, task: str, to: str) -> None:
        former = self.owner.get(task)
        is_live = former in self.live
        self.cost["moved"] += is_live
        if task in self.stateful:
            lag, acceptable = self.lags[to].get(task, FULL), self.scenario["acceptable_recovery_lag"]
            copies = [0 if former == member else self.lags[member].get(task, FULL) for member in self.live]
            self.cost["cold"] += lag > acceptable and min(copies) <= acceptable
            self.cost["restored"] += lag
            if is_live and former is not None:
                self.lags[former][task] = 0
            self.lags[to][task] = 0
        self.owner[task] = to

    def replay(self) -> None:
        for member, lags in self.lags.items():
            for task in list(lags):
                self.step(member, task)
            for task in self.held[member] - lags.keys() if member in self.live else ():
                lags[task] = FULL - SPEED
                self.cost["copied"] += SPEED

    def step(self, member: str, task: str) -> None:
        lags, is_live = self.lags[member], member in self.live
        if is_live and self.owner.get(task) == member:
            lags[task] = 0
        elif is_live and task in self.held[member]:
            replayed = min(lags[task], SPEED)
            lags[task] -= replayed
            self.cost["copied"] += replayed
        else:
            lags[task] = min(FULL, lags[task] + AGE)
            self.idle[member, task] += 1
            if self.idle[member, task] < KEEP or not is_live:
                return
            del lags[task]
        del self.idle[member, task]

    def ready(self, task: str) -> int:
        """How many standbys of a task are caught up."""
        acceptable = self.scenario["acceptable_recovery_lag"]
        return sum(task in self.held[m] and self.lags[m].get(task, FULL) <= acceptable for m in self.live)

    def balance(self) -> None:
        slots = {member: self.members[member]["slots"] for member in self.live}

        def spread(count: Callable[[str], int]) -> float:
            loads = [count(member) / slots[member] for member in self.live]
            return round(max(loads) - min(loads), 3)

        at = Counter((task in self.stateful, self.owner[task]) for task in self.tasks)
        self.cost["spread"] = spread(lambda member: at[True, member])  # type: ignore[assignment]
        self.cost["stateless_spread"] = spread(lambda member: at[False, member])  # type: ignore[assignment]
        self.cost["standby_spread"] = spread(lambda member: len(self.held[member]))  # type: ignore[assignment]
        self.cost["sub_spread"] = 0
        for sub_topology in {task.split("_")[0] for task in self.stateful} if len(set(slots.values())) == 1 else ():
            here = Counter(self.owner[task] for task in self.stateful if task.split("_")[0] == sub_topology)
            counts = [here[member] for member in self.live]
            self.cost["sub_spread"] = max(self.cost["sub_spread"], max(counts) - min(counts))

    def domains(self) -> None:
        for task in self.stateful:
            holders = [member for member in self.live if task in self.held[member]]
            self.cost["short"] += max(0, self.wanted - len(holders))
            copies = 1 + min(self.scenario["standby_replicas"], len(holders))
            for tag in self.scenario["rack_tags"]:
                zones = {self.members[member]["tags"].get(tag) for member in self.live}
                used = {self.members[member]["tags"].get(tag) for member in [self.owner[task], *holders]}
                self.cost["zones"] += max(0, min(copies, len(zones)) - len(used))

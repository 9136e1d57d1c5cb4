"""Scenarios of groups through the real coordinator: hand-overs take two rounds, restores take time.

The events and the names of costs are those of `tests.playing`. What is one round of the assignor there is a turn here:
every slot polls once (`tests.grouping`). A task that moves restores at the speed at which other copies catch up, logs
do not grow, and disks keep what they have. Only the scenarios with one sub-topology, which has state, are played: that
is what the job here is. `rounds` counts the rounds that the catalog keeps, those in which something was decided. A task
that stays with its slot and is given another epoch ends the play.

    .venv/bin/python -m tests.playing_coordinator [SEED...]     all of these, or some, beside Kafka Streams' costs
"""

from __future__ import annotations

import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

from service.catalog.engine import Catalog, upgrade
from tests.grouping import PlayedGroup
from tests.playing import FULL, SPEED, scenarios

Json = dict[str, Any]
SCALE = 1_000  # records of a scenario in one record here
MAX_TURNS = 200
COSTS = ["cold", "unstable", "moved", "restored", "copied", "rounds", "spread"]


class CoordinatorPlay:
    """One scenario; `run` gives what it costs."""

    def __init__(self, catalog: Catalog, scenario: Json) -> None:
        self.scenario = scenario
        self.partitions = sum(count for _, count, has_state in scenario["sub_topologies"] if has_state)
        settings = {name: scenario[name] for name in ("standby_replicas", "max_warmup_replicas")}
        acceptable = scenario["acceptable_recovery_lag"] // SCALE
        self.group = PlayedGroup(
            catalog,
            self.partitions,
            speed=SPEED // SCALE,
            initial_delay_ms=60_000,
            acceptable_recovery_lag=acceptable,
            **settings,
        )
        self.cost: Counter[str] = Counter()
        self.owners: dict[str, str | None] = {}

    def run(self) -> Counter[str]:
        """The first start is free."""
        for name in self.scenario["start"]:
            self.join(name)
        self.settle()
        self.group.fill(FULL // SCALE)
        self.settle()
        before = len(self.group.rounds())
        self.group.cost.clear()
        self.cost.clear()
        for event in self.scenario["events"]:
            self.happen(event["event"], event["member"])
            for _ in range(1 + event["rounds_before"]):
                self.turn()
        self.settle()
        self.cost["rounds"] = len(self.group.rounds()) - before
        for name in ("restored", "copied"):
            self.cost[name] = self.group.cost[name] * SCALE
        slots = {name: self.scenario["members"][name]["slots"] for name in self.live()}
        loads = [list(self.group.owners().values()).count(name) / count for name, count in slots.items()]
        self.cost["spread"] = round(max(loads) - min(loads), 3)  # type: ignore[assignment]
        return self.cost

    def live(self) -> list[str]:
        return [name for name, node in self.group.nodes.items() if node.slots]

    def join(self, name: str) -> None:
        member = self.scenario["members"][name]
        slots = min(member["slots"], self.partitions)  # no more than there are tasks
        self.group.node(name, cores=member["slots"], slots=slots, **member["tags"])

    def happen(self, event: str, name: str) -> None:
        if event in {"join", "back"}:
            self.join(name)
        else:
            self.group.nodes[name].crash()

    def turn(self) -> None:
        """Tasks that another live node had are moved; one that begins behind while a copy elsewhere is not is cold."""
        before, live = self.group.owners(), set(self.live())
        slots, epochs = self.group.owning_slots(), self.group.epochs()
        self.group.poll()
        self.judge(before, live)
        after, now = self.group.owning_slots(), self.group.epochs()
        stayed = [task for task, slot in slots.items() if slot is not None and slot == after[task]]
        assert [now[task] for task in stayed] == [epochs[task] for task in stayed], "a task that stays missed a tick"
        self.group.follow()

    def judge(self, before: dict[str, str | None], live: set[str]) -> None:
        """Count what moved in a turn."""
        acceptable = self.scenario["acceptable_recovery_lag"] // SCALE
        for task, owner in self.group.owners().items():
            if owner is None or before[task] == owner or before[task] not in live:
                continue
            self.cost["moved"] += 1
            lags = {name: self.group.filled - self.group.nodes[name].disk[task] for name in live}
            self.cost["cold"] += lags[owner] > acceptable and min(lags.values()) <= acceptable

    def settle(self) -> None:
        for _ in range(MAX_TURNS):
            before = self.group.owners(), self.group.kept()
            self.turn()
            if self.group.is_still(before):
                return
        self.cost["unstable"] += 1


def play(scenario: Json, migrated: bytes) -> Counter[str]:
    """What a scenario costs, in a catalog of its own."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "catalog.db"
        path.write_bytes(migrated)
        catalog = Catalog(f"sqlite:///{path}")
        try:
            return CoordinatorPlay(catalog, scenario).run()
        finally:
            catalog.close()


def is_played(scenario: Json) -> bool:
    """Whether it is one sub-topology, with state."""
    return [has_state for _, _, has_state in scenario["sub_topologies"]] == [True]


def main(seeds: list[int]) -> None:
    """Print the table."""
    ours: Counter[str] = Counter()
    kafka: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "migrated.db"
        upgrade(f"sqlite:///{path}")
        migrated = path.read_bytes()
    played = [each for each in scenarios() if is_played(each) and (not seeds or each["seed"] in seeds)]
    for scenario in played:
        ours.update(play(scenario, migrated))
        kafka.update(scenario["cost"])
    sys.stdout.write(f"{len(played)} scenarios\n")
    for name in COSTS:
        ratio = f"{ours[name] / kafka[name]:.3f}" if kafka[name] else "-"
        sys.stdout.write(f"{name:10} {ours[name]:>15,} {kafka[name]:>15,} {ratio:>8}\n")


if __name__ == "__main__":
    main([int(seed) for seed in sys.argv[1:]])

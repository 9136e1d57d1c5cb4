"""A group in a catalog, played turn by turn: nodes with slots that poll, restore, follow and hand over as slots do.

In a turn every slot polls once, then goes `speed` records on in each changelog that it is to follow: those of its tasks
first, of other copies once all its tasks are restored. What a node has read stays on it. No Spark, no files, no
records: changelogs are as long as `fill` made them.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from sqlalchemy import select, update
from sqlalchemy.orm import Session

from service import coordinator
from service.catalog import groups, replicas, streams
from service.catalog.engine import Catalog
from service.catalog.job_states import lock_job
from service.catalog.tables import InstanceRow, JobRow, TaskRow, new_id
from service.protocol import HeldCopy, HeldTask, JoinedSlot, NodeRef, PollAnswer
from service.streams.topology.graph import Topology
from service.streams.topology.spec import JobSpec
from tests.integration.catalog.world import make_job, make_stream, post

STORE = "visits-once"
LEASE_MS = 3_600_000  # nobody is lost but who is said to be


class PlayedSlot:
    """A slot of a node: what it was told, what it holds."""

    def __init__(self, node: PlayedNode, slot_id: str, joined: JoinedSlot) -> None:
        self.node, self.id, self.store = node, slot_id, joined.stores[STORE].id
        self.tasks: dict[str, tuple[str, int]] = {}  # name → id and epoch
        self.copies: dict[str, str] = {}
        self.ends: dict[str, int] = {}
        self.has_left = False

    def poll(self) -> PollAnswer:
        """Say what is held, take over what is answered."""
        held = [HeldTask(task, epoch, applied=self.applied(name)) for name, (task, epoch) in self.tasks.items()]
        copies = [HeldCopy(task, self.applied(name)) for name, task in self.copies.items()]
        answer = coordinator.poll_slot(self.node.group.catalog, self.id, held, copies=copies).answer
        if answer.directive == "leave":
            self.node.group.catalog.write(coordinator.leave_slot, self.id)
            self.has_left = True
        self.tasks = {each.name: (each.task, each.epoch) for each in answer.tasks}
        self.copies = {each.name: each.task for each in answer.copies}
        self.ends = {each.name: sum(each.changelogs.values()) for each in [*answer.tasks, *answer.copies]}
        return answer

    def applied(self, name: str) -> dict[str, int]:
        return {self.store: self.node.disk[name]}

    def follow(self) -> None:
        """Go on in the changelogs: of tasks, and of other copies once these are restored."""
        disk, speed, cost = self.node.disk, self.node.group.speed, self.node.group.cost
        behind = [name for name in self.tasks if disk[name] < self.ends[name]]
        for name in behind or self.copies:
            step = min(speed, self.ends[name] - disk[name])
            cost["restored" if behind else "copied"] += step
            disk[name] += step


class PlayedNode:
    """A node, as an instance of its own with some slots."""

    def __init__(self, group: PlayedGroup, name: str, cores: int, tags: dict[str, str]) -> None:
        self.group, self.name, self.cores, self.tags = group, name, cores, tags
        self.disk: dict[str, int] = defaultdict(int)
        self.slots: list[PlayedSlot] = []
        self.instance = ""
        self.starts = 0

    def start(self, slots: int | None = None) -> None:
        """Join, with this many slots (all)."""
        self.starts += 1
        arguments = {"name": self.name, "incarnation": str(self.starts), "host": self.name, "cores": self.cores}
        catalog = self.group.catalog
        self.instance = catalog.write(coordinator.join_instance, **arguments, tags=self.tags, lease_ms=LEASE_MS).id
        self.slots = []
        for _ in range(self.cores if slots is None else slots):
            self.join_slot()

    def join_slot(self) -> PlayedSlot:
        """One slot more."""
        slot_id, group = new_id(), self.group
        joined = group.catalog.write(
            coordinator.join_slot,
            self.instance,
            job_id=group.job.id,
            slot_id=slot_id,
            index=len(self.slots),
            node=NodeRef(self.name, self.name, "8:2"),
            lease_ms=LEASE_MS,
            initial_delay_ms=group.initial_delay_ms,
        )
        self.slots.append(PlayedSlot(self, slot_id, joined))
        return self.slots[-1]

    def crash(self) -> None:
        """End without a word: the lease runs out."""
        catalog = self.group.catalog
        coordinator.tick(catalog, lease_ms=LEASE_MS)
        expired = update(InstanceRow).where(InstanceRow.id == self.instance).values(lease_until_ms=0)
        catalog.write(lambda s: s.execute(expired))
        coordinator.tick(catalog, lease_ms=LEASE_MS)
        self.slots = []

    def drain(self, timeout_ms: int = 60_000) -> None:
        """Begin to leave."""
        how = {"incarnation": str(self.starts), "drain": True, "scale_down_timeout_ms": timeout_ms}
        self.group.catalog.write(coordinator.leave_instance, self.instance, **how)

    @property
    def running(self) -> set[str]:
        """Names of the tasks that its slots hold."""
        return {name for slot in self.slots for name in slot.tasks}

    @property
    def following(self) -> set[str]:
        """Names of the tasks of which its slots keep copies beside."""
        return {name for slot in self.slots for name in slot.copies}


class PlayedGroup:
    """A job over `partitions` tasks with a store each, and the nodes that run it."""

    def __init__(
        self, catalog: Catalog, partitions: int, *, speed: int = 400, initial_delay_ms: int = 0, **spec: Any
    ) -> None:
        self.catalog, self.speed, self.initial_delay_ms = catalog, speed, initial_delay_ms
        make_stream(catalog, partitions=partitions)
        self.job: JobRow = make_job(catalog, **{"acceptable_recovery_lag": 10} | spec)
        self.nodes: dict[str, PlayedNode] = {}
        self.cost: Counter[str] = Counter()
        self.filled = 0
        coordinator.tick(catalog, lease_ms=LEASE_MS)

    def node(self, name: str, cores: int = 1, slots: int | None = None, **tags: str) -> PlayedNode:
        """A node that joins, or joins again."""
        if name not in self.nodes:
            self.nodes[name] = PlayedNode(self, name, cores, tags)
        self.nodes[name].start(slots)
        return self.nodes[name]

    def change(self, **fields: Any) -> None:
        """`PATCH` of the job."""

        def write(s: Session) -> None:
            job = lock_job(s, job_id=self.job.id)
            spec = JobSpec.parse({**job.spec, **fields})
            coordinator.change_spec(s, job, spec, Topology.from_json(job.topology))

        self.catalog.write(write)

    def fill(self, records: int) -> None:
        """So much is in every changelog, and whoever runs a task has it."""
        changelog = self.catalog.read(streams.get_stream, f"{STORE}-changelog")
        post(self.catalog, changelog, dict.fromkeys(range(len(self.owners())), records))
        for node in self.nodes.values():
            for name in node.running:
                node.disk[name] += records
        self.filled += records
        self.turn()

    def turn(self) -> None:
        """Every slot polls, then follows."""
        self.poll()
        self.follow()

    def poll(self) -> None:
        """Every slot polls; those that are told to leave do."""
        for node in self.nodes.values():
            for slot in node.slots:
                slot.poll()
            node.slots = [slot for slot in node.slots if not slot.has_left]

    def follow(self) -> None:
        """Every slot goes on in its changelogs."""
        for node in self.nodes.values():
            for slot in node.slots:
                slot.follow()

    def settle(self, turns: int = 60) -> int:
        """Turns until nothing is on its way; how many that took."""
        for count in range(turns):
            before = self.owners(), self.kept()
            self.turn()
            if self.is_still(before):
                return count
        raise AssertionError("no end")

    def is_still(self, before: tuple[dict[str, str | None], dict[str, set[str]]]) -> bool:
        """Whether nothing has changed since (owners and what is kept), and nothing is on its way."""
        is_same = before == (self.owners(), self.kept())
        return is_same and not self.shown().is_probing and not self.moving() and not self.is_behind()

    def is_behind(self) -> bool:
        """Whether a copy is not at the end of what its slot was told."""
        slots = [slot for node in self.nodes.values() for slot in node.slots]
        return any(slot.node.disk[name] < end for slot in slots for name, end in slot.ends.items())

    def shown(self) -> JobRow:
        """The job's row as it is now."""
        return self.catalog.read(lambda s: s.get_one(JobRow, self.job.id))

    def owners(self) -> dict[str, str | None]:
        """Task → the name of the node that owns it."""
        names = {slot.id: node.name for node in self.nodes.values() for slot in node.slots}
        return {at.task: names.get(at.slot_id or "") for at in self.catalog.read(replicas.owners_of, self.job.id)}

    def owning_slots(self) -> dict[str, str | None]:
        """Task → the id of the slot that owns it."""
        return {at.task: at.slot_id for at in self.catalog.read(replicas.owners_of, self.job.id)}

    def epochs(self) -> dict[str, int]:
        """Task → its epoch: it rises with each change of owner."""
        query = select(TaskRow.name, TaskRow.epoch).where(TaskRow.job_id == self.job.id)
        return {name: epoch for name, epoch in self.catalog.read(lambda s: s.execute(query).all())}  # noqa: C416

    def moving(self) -> set[str]:
        """Tasks that are to change hands."""
        found = self.catalog.read(replicas.owners_of, self.job.id)
        return {at.task for at in found if at.target_slot_id is not None}

    def kept(self) -> dict[str, set[str]]:
        """Node → tasks of which it keeps copies without running them."""
        return {node.name: node.following for node in self.nodes.values()}

    def rounds(self) -> list[str]:
        """The reasons of the rebalances so far, in order."""
        return [row.reason for row in reversed(self.catalog.read(groups.rebalances_of, self.job.id))]

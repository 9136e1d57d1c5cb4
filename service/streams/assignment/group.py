"""The nouns of an assignment: nodes, tasks, what is where, and what is decided.

It knows no rule: `sticky` strategies and `high_availability` decide, `assignor` chooses among them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

Strategy = Literal["high_availability", "sticky"]


@dataclass(frozen=True, slots=True)
class ReplicaNode:
    """A place for copies: its slots (none: it is leaving), its tags, the stateful and stateless tasks that run here,
    and how many records each other copy here is behind. Only what is running counts as such: a task that restores is a
    copy with a lag.
    """

    id: str
    slots: int
    tags: Mapping[str, str] = field(default_factory=dict)
    running: Sequence[str] = ()
    lags: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Task:
    """Sub-topology × partition. One without state has no copies and may run anywhere."""

    id: str
    sub_topology: int
    partition: int
    is_stateful: bool = True


@dataclass(frozen=True, slots=True)
class AssignmentSettings:
    """Of a job (KIP-441). `rack_tags`: which tags standbys are spread over, the coarsest first (KIP-708)."""

    standby_replicas: int = 0
    acceptable_recovery_lag: int = 10_000
    max_warmup_replicas: int = 2
    rack_tags: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class Group:
    """All that an assignment depends on, in one order, whatever order it was given in: nodes by id, tasks by number."""

    nodes: Sequence[ReplicaNode]
    tasks: Sequence[Task]
    settings: AssignmentSettings

    @property
    def open_nodes(self) -> Sequence[ReplicaNode]:
        """Those that may get something."""
        return [node for node in self.nodes if node.slots]

    def __post_init__(self) -> None:
        object.__setattr__(self, "nodes", tuple(sorted(self.nodes, key=lambda node: node.id)))
        in_order = sorted(self.tasks, key=lambda task: (task.sub_topology, task.partition, task.id))
        object.__setattr__(self, "tasks", tuple(in_order))


@dataclass(frozen=True, slots=True)
class Assignment:
    """Task id → the node where it runs; → the nodes of its standbys; → those of its warm-ups, which are copies beyond
    `standby_replicas`. `probing`: once copies have caught up, asking again moves something.
    """

    active: Mapping[str, str]
    standby: Mapping[str, Sequence[str]]
    warm_up: Mapping[str, Sequence[str]]
    probing: bool

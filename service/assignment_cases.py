"""`millrace assign`: cases of a group as JSON lines, and what the assignor answers.

It knows the members of these objects. It refuses to know how an assignment is found (`service.streams.assignment`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

import msgspec

from service.streams.assignment.assignor import assign
from service.streams.assignment.group import Assignment, AssignmentSettings, Group, ReplicaNode, Strategy, Task

Count = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
TaskName = Annotated[str, msgspec.Meta(pattern=r"^(0|[1-9][0-9]{0,8})_(0|[1-9][0-9]{0,8})$")]


class MalformedCase(ValueError):
    """A line that is no case, or one that contradicts itself."""


class CaseMember(msgspec.Struct, forbid_unknown_fields=True):
    """A node: `active` are the tasks that run there, `lags` how far its other copies are behind, in records. Without
    slots it is leaving.
    """

    id: str
    slots: Annotated[int, msgspec.Meta(ge=0, le=1_000_000)]
    tags: dict[str, str] = {}
    active: list[TaskName] = []
    lags: dict[TaskName, Count] = {}


class Case(msgspec.Struct, forbid_unknown_fields=True):
    """A group at one moment. `assignor`: `ha` (short for it) and `high_availability`, or `sticky`."""

    members: list[CaseMember]
    tasks: list[TaskName]
    stateful: list[TaskName] | None = None
    assignor: str = "high_availability"
    standby_replicas: Count = 0
    acceptable_recovery_lag: Count = 10_000
    max_warmup_replicas: Annotated[int, msgspec.Meta(ge=1, le=1_000_000)] = 2
    rack_tags: list[str] = []


_case = msgspec.json.Decoder(Case)


_STRATEGIES: dict[str, Strategy] = {
    "ha": "high_availability",
    "high_availability": "high_availability",
    "sticky": "sticky",
}


def answer(line: bytes | str) -> dict[str, Any]:
    """`{"active": {member: [task]}, "standby": {member: [task]}, "probing": bool}` for a case; warm-ups are standbys
    beyond the asked number. Raises MalformedCase.
    """
    try:
        case = _case.decode(line)
    except msgspec.DecodeError as error:
        raise MalformedCase(f"this is no case: {error}") from error
    group, strategy = _group(case)
    return _document([each.id for each in case.members], assign(group, strategy))


def case_of(group: Group, strategy: Strategy) -> dict[str, Any]:
    """The case, as JSON, that a group is; its tasks are called as in a case."""
    settings = group.settings
    return {
        "members": [
            {
                "id": node.id,
                "slots": node.slots,
                "tags": dict(node.tags),
                "active": sorted(node.running),
                "lags": dict(sorted(node.lags.items())),
            }
            for node in group.nodes
        ],
        "tasks": [task.id for task in group.tasks],
        "stateful": [task.id for task in group.tasks if task.is_stateful],
        "assignor": strategy,
        "standby_replicas": settings.standby_replicas,
        "acceptable_recovery_lag": settings.acceptable_recovery_lag,
        "max_warmup_replicas": settings.max_warmup_replicas,
        "rack_tags": list(settings.rack_tags),
    }


def answer_of(group: Group, made: Assignment) -> dict[str, Any]:
    """What was decided for a group, as `answer` answers its case."""
    return _document([node.id for node in group.nodes], made)


def _group(case: Case) -> tuple[Group, Strategy]:
    strategy = _STRATEGIES.get(case.assignor)
    if strategy is None:
        raise MalformedCase(f"there is no assignor {case.assignor!r}: it is one of {', '.join(_STRATEGIES)}")
    stateful = set(case.tasks if case.stateful is None else case.stateful)
    _agree(case, stateful)
    nodes = [ReplicaNode(each.id, each.slots, each.tags, each.active, each.lags) for each in case.members]
    tasks = [Task(name, int(name.split("_")[0]), int(name.split("_")[1]), name in stateful) for name in case.tasks]
    settings = AssignmentSettings(
        case.standby_replicas, case.acceptable_recovery_lag, case.max_warmup_replicas, tuple(case.rack_tags)
    )
    return Group(nodes, tasks, settings), strategy


def _agree(case: Case, stateful: set[str]) -> None:
    """Raises MalformedCase where a case says two things."""
    running = [task for each in case.members for task in each.active]
    for what, names in (
        ("member", [each.id for each in case.members]),
        ("task", case.tasks),
        ("running task", running),
    ):
        twice = sorted({name for name in names if names.count(name) > 1}) if len(set(names)) < len(names) else []
        if twice:
            raise MalformedCase(f"{what} {twice[0]!r} is there twice")
    unknown = stateful.union(running).difference(case.tasks)
    if unknown:
        raise MalformedCase(f"{min(unknown)!r} is not among the tasks")


def _document(members: Sequence[str], made: Assignment) -> dict[str, Any]:
    active: dict[str, list[str]] = {member: [] for member in members}
    standby: dict[str, list[str]] = {member: [] for member in members}
    for task, node in made.active.items():
        active[node].append(task)
    for copies in made.standby, made.warm_up:
        for task, nodes in copies.items():
            for node in nodes:
                standby[node].append(task)
    return {"active": active, "standby": standby, "probing": made.probing}

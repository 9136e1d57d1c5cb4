"""The group of a job: who runs it, where copies are and how far, what was decided and why, what would be.

Knows shapes and bounds. Refuses to know who should own what (`service.coordinator`, `service.streams.assignment`).
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any, Literal
from uuid import NAMESPACE_OID, UUID, uuid5

import msgspec
from fastapi import Path, Query
from pydantic import BaseModel, Field
from sqlalchemy.orm import Session
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import UNCHANGED, answer, read_struct, tagged, with_tag
from service.api.document import router_of, takes
from service.api.models import MAX_ROW_ID, Cursor, Limit, PageView, first_row, rows_page
from service.api.moments import Moment, moment
from service.assignment_cases import answer_of, case_of
from service.auth import Reader
from service.catalog import groups, jobs, nodes, replicas
from service.catalog.tables import JobRow, RebalanceRow, ReplicaRow
from service.coordinator.situation import AssignmentSpec, Situation, situation_of
from service.problems import declared, refused
from service.protocol import Text
from service.streams.assignment.assignor import assign
from service.streams.assignment.group import Group, ReplicaNode, Strategy
from service.streams.assignment.metadata import ACTIVE, UNKNOWN, AssignmentInfo, SubscriptionInfo
from service.streams.assignment.outlook import outlook
from service.streams.records import Id

router = router_of("groups")

V4 = 4  # of SubscriptionInfo and AssignmentInfo


class MemberView(BaseModel):
    """A slot of a job and the tasks it owns."""

    slot: str
    instance: str
    node: str
    index: int
    tasks: list[str]


class NodeView(BaseModel):
    """A replica folder that the group uses: its host, its tags (`host` among them), how many slots may get tasks there
    (0: it is leaving), and the instances that use it.
    """

    node: str
    host: str
    tags: dict[str, str]
    slots: int
    instances: list[str]


class CopyView(BaseModel):
    """A copy of a task's stores: where, what for, which slot keeps it up to date (null: none does), and how far it is
    behind, in records and, at the rate at which it last went on, in seconds (null: not known).
    """

    task: str
    node: str
    role: Literal["active", "standby", "warm-up"]
    state: Literal["restoring", "warm", "running", "backlog"]
    slot: str | None
    lag_records: int
    lag_s: float | None


class GroupView(BaseModel):
    """Who runs a job: its members and nodes, which task each slot owns, what is about to move, where copies are.

    `standby`, `warm_up`: task → nodes whose slots keep one. `probing`: copies are on their way, and once they have
    caught up something moves. `missing_standbys`: how many of those asked for are not there and caught up.
    """

    job: str
    state: str
    generation: int
    members: list[MemberView]
    assignment: dict[str, str | None]
    moving: dict[str, str]
    standby: dict[str, list[str]]
    warm_up: dict[str, list[str]]
    nodes: list[NodeView]
    copies: list[CopyView]
    probing: bool
    missing_standbys: int


class MemberInfosView(BaseModel):
    """A slot as a member of Kafka Streams would speak, and be spoken to, in base64."""

    slot: str
    subscription: str
    assignment: str


class GroupInfosView(BaseModel):
    """A group as SubscriptionInfo and AssignmentInfo, version 4."""

    job: str
    generation: int
    members: list[MemberInfosView]


class MovedTaskView(BaseModel):
    """A task that changed hands."""

    from_: Annotated[str | None, Field(alias="from")]
    to: str


class RebalanceView(BaseModel):
    """One round of assignment; `took_ms` is null while a hand-over is under way."""

    generation: int
    at: Moment
    reason: str
    moved: dict[str, MovedTaskView]
    took_ms: int | None


class AssignmentNodeView(BaseModel):
    """A node as the assignor sees it."""

    id: str
    slots: int
    tags: dict[str, str]
    active: list[str]
    lags: dict[str, int]


class AssignmentCaseView(BaseModel):
    """What is decided by: a group at one moment, as `millrace assign` reads it."""

    members: list[AssignmentNodeView]
    tasks: list[str]
    stateful: list[str]
    assignor: Strategy
    standby_replicas: int
    acceptable_recovery_lag: int
    max_warmup_replicas: int
    rack_tags: list[str]


class AssignmentAnswerView(BaseModel):
    """What is decided, as `millrace assign` answers it; warm-ups are standbys beyond the asked number."""

    active: dict[str, list[str]]
    standby: dict[str, list[str]]
    probing: bool


class RebalanceCaseView(RebalanceView):
    """A round with what it was decided by and what was decided, as `millrace assign` reads and answers; null where
    joins are still gathered, and in rounds of former versions.
    """

    case: AssignmentCaseView | None
    answer: AssignmentAnswerView | None


class PlannedNode(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node that might join."""

    node: Id
    slots: Annotated[int, msgspec.Meta(ge=1, le=10_000)]
    tags: dict[Text, Text] = {}


class PlanRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Nodes that might come, and ids of those that might go."""

    add: Annotated[list[PlannedNode], msgspec.Meta(max_length=100)] = []
    remove: Annotated[list[Id], msgspec.Meta(max_length=1_000)] = []


class PlannedMoveView(BaseModel):
    """A task that comes to run on another node; `lag_records`: of the copy that is there now (null: none is)."""

    task: str
    from_node: str | None
    to_node: str
    lag_records: int | None


class PlanView(BaseModel):
    """What would move in the end, and the first round on the way there, as `millrace assign` reads and answers it."""

    moves: list[PlannedMoveView]
    case: AssignmentCaseView
    answer: AssignmentAnswerView


PLAN = msgspec.json.Decoder(PlanRequest)
PLAN_EXAMPLE = {"add": [{"node": "d", "slots": 2, "tags": {"zone": "a"}}], "remove": []}


@router.get(
    "/v1/groups/{job:name}",
    responses={200: with_tag(GroupView | GroupInfosView), **UNCHANGED, **declared(401, 403, 404, 422)},
)
def get_group(
    request: Request, job: str, _: Reader, as_format: Annotated[Literal["v4"] | None, Query(alias="format")] = None
) -> Response:
    """Show who runs a job and where its copies are; `format=v4`: as Kafka Streams would say it."""
    return tagged(request, request.state.catalog.read(_group if as_format is None else _infos, job))


@router.get(
    "/v1/groups/{job:name}/rebalances",
    responses={200: {"model": PageView[RebalanceView]}, **declared(401, 403, 404, 422)},
)
def list_rebalances(request: Request, job: str, _: Reader, limit: Limit = 100, cursor: Cursor = None) -> Response:
    """List a job's rounds of assignment, latest first: why, what moved, how long it took."""
    return answer(request.state.catalog.read(_rebalances, job, limit, cursor))


@router.get(
    "/v1/groups/{job:name}/rebalances/{generation}",
    responses={200: with_tag(RebalanceCaseView), **UNCHANGED, **declared(401, 403, 404, 422)},
)
def get_rebalance(
    request: Request, job: str, generation: Annotated[int, Path(ge=1, le=MAX_ROW_ID)], _: Reader
) -> Response:
    """Show a round with the case that it decided and the answer: `millrace assign` answers the same."""
    return tagged(request, request.state.catalog.read(_rebalance_case, job, generation))


@router.post(
    "/v1/groups/{job:name}:plan",
    responses={200: {"model": PlanView}, **declared(400, 401, 403, 404, 413, 415, 422)},
    openapi_extra=takes(PlanRequest, PLAN_EXAMPLE),
)
async def plan_group(request: Request, job: str, _: Reader) -> Response:
    """Say what would move if nodes came or went; changes nothing."""
    body = await read_struct(request, PLAN)
    return answer(await run_in_threadpool(request.state.catalog.read, _plan, job, body))


# ---------------------------------------------------------------- in a transaction


def _seen(s: Session, name: str) -> tuple[JobRow, Situation, list[replicas.Holding]]:
    job = jobs.get_job(s, name)
    holdings = replicas.holdings_of(s, jobs.task_rows(s, job.id))
    return job, situation_of(s, job, holdings), holdings


def _group(s: Session, name: str) -> dict[str, Any]:
    job, situation, holdings = _seen(s, name)
    owners, wanted = replicas.owners_of(s, job.id), AssignmentSpec.of(job).standby_replicas
    members, rows = groups.members_of(s, job.id), nodes.nodes_by_id(s, list(situation.slots))
    ends = replicas.changelog_ends(s, job.id)
    copies = [
        _copy(each.task.name, copy, ends.get(each.task.id, {}))
        for each in holdings
        for _, copy in sorted(each.copies.items())
    ]
    kept = [copy for copy in copies if copy["role"] != "active" and copy["slot"] is not None]
    caught_up = [copy["task"] for copy in kept if copy["state"] == "running"]
    return {
        "job": job.name,
        "state": job.state,
        "generation": job.generation,
        "members": [
            {
                "slot": slot.id,
                "instance": instance,
                "node": slot.node_id,
                "index": slot.slot_index,
                "tasks": [at.task for at in owners if at.slot_id == slot.id],
            }
            for slot, instance in members
        ],
        "assignment": {at.task: at.slot_id for at in owners},
        "moving": {at.task: at.target_slot_id for at in owners if at.target_slot_id is not None},
        "standby": _kept(copies, "standby"),
        "warm_up": _kept(copies, "warm-up"),
        "nodes": [
            {
                "node": node.id,
                "host": rows[node.id].host,
                "tags": node.tags,
                "slots": node.slots,
                "instances": sorted({instance for slot, instance in members if slot.node_id == node.id}),
            }
            for node in situation.group.nodes
        ],
        "copies": copies,
        "probing": job.is_probing,
        "missing_standbys": sum(
            max(0, wanted - caught_up.count(task.id)) for task in situation.group.tasks if task.is_stateful
        ),
    }


def _copy(task: str, copy: ReplicaRow, ends: Mapping[str, int]) -> dict[str, Any]:
    lag = replicas.behind(copy.applied, ends)
    lag_s = 0.0 if lag == 0 else round(lag / copy.rate, 1) if copy.rate else None
    return {
        "task": task,
        "node": copy.node_id,
        "role": copy.role,
        "state": copy.state,
        "slot": copy.slot_id,
        "lag_records": lag,
        "lag_s": lag_s,
    }


def _kept(copies: Sequence[Mapping[str, Any]], role: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for copy in copies:
        if copy["role"] == role and copy["slot"] is not None:
            found.setdefault(copy["task"], []).append(copy["node"])
    return found


def _infos(s: Session, name: str) -> dict[str, Any]:
    """What runs counts as active in a subscription, every other copy of the member as one of unknown position."""
    job, situation, holdings = _seen(s, name)
    changelogs: dict[int, list[str]] = {}
    for store in jobs.stores_of(s, job.id):
        changelogs.setdefault(store.sub_topology, []).append(f"{store.name}-changelog")
    runs = {task for node in situation.group.nodes for task in node.running}
    shown = []
    for slot_id, slot in sorted(situation.live.items()):
        held = [(each.task, copy) for each in holdings for copy in each.copies.values() if copy.slot_id == slot_id]
        at = {task.name: (task.sub_topology, task.partition) for task, _ in held}
        sums = {
            at[task.name]: ACTIVE if task.name in runs and copy.role == "active" else UNKNOWN for task, copy in held
        }
        standby = {
            at[task.name]: [(topic, task.partition) for topic in changelogs.get(task.sub_topology, [])]
            for task, copy in held
            if copy.role != "active"
        }
        active = [at[task.name] for task, copy in held if copy.role == "active"]
        subscription = SubscriptionInfo(V4, _uuid(slot.node_id), sums)
        assignment = AssignmentInfo(V4, active, standby)
        infos = {"subscription": subscription.encode(), "assignment": assignment.encode()}
        shown.append({"slot": slot_id} | {each: b64encode(data).decode() for each, data in infos.items()})
    return {"job": job.name, "generation": job.generation, "members": shown}


def _uuid(node_id: str) -> UUID:
    """A node as a process id: its own id where that is one."""
    try:
        return UUID(hex=node_id)
    except ValueError:
        return uuid5(NAMESPACE_OID, node_id)


def _rebalances(s: Session, name: str, limit: int, cursor: str | None) -> dict[str, Any]:
    job_id = jobs.get_job(s, name).id
    of = f"rebalances/{job_id}"
    rows = groups.rebalances_of(s, job_id, limit=limit + 1, before=first_row(of, cursor))
    return rows_page(of, rows, _rebalance, limit=limit)


def _rebalance(row: RebalanceRow) -> dict[str, Any]:
    return {
        "generation": row.generation,
        "at": moment(row.at_ms),
        "reason": row.reason,
        "moved": row.moved,
        "took_ms": row.took_ms,
    }


def _rebalance_case(s: Session, name: str, generation: int) -> dict[str, Any]:
    row = groups.get_rebalance(s, jobs.get_job(s, name), generation)
    return {**_rebalance(row), "case": row.input, "answer": row.output}


def _plan(s: Session, name: str, body: PlanRequest) -> dict[str, Any]:
    _, situation, _ = _seen(s, name)
    planned = _planned(situation.group, body)
    in_the_end = outlook(planned, situation.strategy)
    runs = {task: node.id for node in situation.group.nodes for task in node.running}
    lags = {node.id: node.lags for node in planned.nodes}
    return {
        "moves": [
            {"task": task, "from_node": runs.get(task), "to_node": to, "lag_records": lags[to].get(task)}
            for task, to in in_the_end.items()
            if runs.get(task) != to
        ],
        "case": case_of(planned, situation.strategy),
        "answer": answer_of(planned, assign(planned, situation.strategy)),
    }


def _planned(group: Group, body: PlanRequest) -> Group:
    there = {node.id: node for node in group.nodes}
    for i, node_id in enumerate(body.remove):
        if there.pop(node_id, None) is None:
            raise refused("invalid_request", f"/remove/{i}", f"{node_id!r} is no node of the group, or named twice")
    added = {}
    for i, each in enumerate(body.add):
        if each.node in there or each.node in added:
            raise refused("invalid_request", f"/add/{i}/node", f"{each.node!r} is a node of the group, or named twice")
        added[each.node] = ReplicaNode(each.node, each.slots, each.tags)
    return replace(group, nodes=[*there.values(), *added.values()])

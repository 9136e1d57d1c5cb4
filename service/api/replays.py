"""Replays of dropped records over HTTP: which records, and how far.

Knows the shapes of the request and its answer. Refuses to know how a replay goes on (`service.catalog.replays`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import answer, read_model
from service.api.document import router_of, takes
from service.auth import Writer
from service.catalog import replays
from service.problems import ProblemError, declared
from service.streams.topology.replays import Wanted

router = router_of("jobs")

Timestamp = Annotated[int, Field(ge=0, lt=2**63)]
Name = Annotated[str, Field(min_length=1, max_length=255)]


class ReplayRequest(BaseModel):
    """Which dropped records to replay; what is left out, or null, admits all. Times are ms, both inclusive."""

    model_config = ConfigDict(extra="forbid", strict=True)

    reason: Annotated[list[Name], Field(min_length=1, max_length=100)] | None = None
    operator: Name | None = None
    from_timestamp: Timestamp | None = None
    to_timestamp: Timestamp | None = None


class ReplayPartitionView(BaseModel):
    """Offsets of a partition that the replay looks through, from `start` up to `end` (not included)."""

    partition: int
    start: int
    end: int


class ReplayView(BaseModel):
    """A replay that was asked for, by partition of the stream of dropped records."""

    job: str
    stream: str
    partitions: list[ReplayPartitionView]


@router.post(
    "/v1/jobs/{job:name}/dropped:replay",
    status_code=202,
    responses={202: {"model": ReplayView}, **declared(400, 401, 403, 404, 409, 413, 415, 422)},
    openapi_extra=takes(ReplayRequest, {"reason": ["expression_failed"], "operator": "total"}),
)
async def replay_dropped(request: Request, job: str, caller: Writer) -> Response:
    """Feed records of `<job>-dropped` again through the job, each from the operator on that dropped it.

    What was kept until now is looked through, from its beginning, also what was replayed before: name what you want. A
    job that does not run replays once it does. `caught_up` of the job says when it is done.
    """
    asked = await read_model(request, ReplayRequest)
    if (
        asked.from_timestamp is not None
        and asked.to_timestamp is not None
        and asked.from_timestamp > asked.to_timestamp
    ):
        detail = "lies after to_timestamp"
        raise ProblemError(422, "invalid_request", detail, [{"pointer": "/from_timestamp", "detail": detail}])
    wanted = Wanted(**asked.model_dump())
    found = await run_in_threadpool(request.state.catalog.write, replays.ask_to_replay, job, wanted, who=caller.name)
    partitions = [at._asdict() for at in found.partitions]
    return answer({"job": job, "stream": found.stream, "partitions": partitions}, 202)

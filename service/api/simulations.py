"""`:simulate` over HTTP: a job over the records of its request.

Knows who may ask for how much. Refuses to know how a simulation runs and how it is bounded (`service.simulate`).
"""

from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from service.api.bodies import json_bytes
from service.api.document import router_of, takes
from service.api.models import WindowView
from service.auth import MAY, Reader
from service.problems import ProblemError, Refusal, declared
from service.simulate import BareSimulateRequest, SimulateRequest

router = router_of("jobs")

SMALL_SIMULATION_BYTES = 256 << 10  # what a reader may ask for


class SimulatedEntryView(BaseModel):
    """An entry of a store."""

    key: str | None
    window: WindowView | None
    value: Any
    timestamp: int


class SimulatedOutputView(SimulatedEntryView):
    """A record that comes out, with the sink and the partition that it goes to."""

    stream: str
    partition: int


class SimulatedDropView(BaseModel):
    """A record that an operator dropped."""

    operator: str
    reason: str
    key: str | None
    timestamp: int | None
    error: str | None = None


class SimulationView(BaseModel):
    """Outputs in the order in which operators forwarded them, entries of stores, dropped records."""

    outputs: list[SimulatedOutputView]
    stores: dict[str, list[SimulatedEntryView]]
    dropped: list[SimulatedDropView]
    stream_time: dict[str, int]


@router.post(
    "/v1/jobs:simulate",
    responses={200: {"model": SimulationView}, **declared(400, 401, 403, 413, 415, 422, 429)},
    openapi_extra=takes(
        SimulateRequest,
        {
            "job": {"operators": [{"op": "deduplicate_by_key", "name": "once", "interval_ms": 60_000}]},
            "records": [
                {"key": "u1", "value": {"id": "a"}, "timestamp": 1_700_000_000_000},
                {"key": "u1", "value": {"id": "a"}, "timestamp": 1_700_000_001_000},
            ],
        },
        other=BareSimulateRequest,
    ),
)
async def simulate_job(request: Request, caller: Reader) -> Response:
    """Run operators over the records of the request: no Spark, nothing kept.

    The job is the member `job`, or its members stand beside the records.

    At most 100,000 records; more than 256 KiB need the role writer. An answer has at most 100,000 outputs, dropped
    records and entries of stores, of 64 MiB, and is made within 30 s and 1 GiB of memory. What passes that is refused
    while it runs. Two simulations run at once; others wait 10 s for their turn, then they are refused (429).
    """
    body = await json_bytes(request)
    if len(body) > SMALL_SIMULATION_BYTES and caller.role not in MAY["writer"]:
        detail = f"a simulation of more than {SMALL_SIMULATION_BYTES} bytes needs the role writer"
        raise ProblemError(403, "forbidden", f"{detail}; the key has the role {caller.role}")
    found = await request.state.simulations.run(body)
    return found.answer(request) if isinstance(found, Refusal) else Response(found, media_type="application/json")

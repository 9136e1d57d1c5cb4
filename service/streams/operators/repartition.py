"""repartition: other tasks go on with the records, each with those whose keys belong to it.

It is where a chain is cut in two (`service.streams.topology.graph`), no step of it. Records, their order within a key,
and tables stay what they are.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from service.streams.operators.declaration import OperatorSpec, operator
from service.streams.operators.fields import OperatorName

MAX_PARTITIONS = 1_000


@operator
class RepartitionSpec(OperatorSpec):
    """`{"op": "repartition", "name", "partitions"?}`: how many tasks go on; absent: as many as before"""

    op: Literal["repartition"]
    name: OperatorName
    partitions: Annotated[int, Field(ge=1, le=MAX_PARTITIONS)] | None = None

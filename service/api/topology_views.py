"""A compiled job as answers show it, for the OpenAPI document: what `Topology.to_json` writes.

Refuses to know what a topology means (`service.streams.topology.graph`).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, Field

from service.api.topology_pictures import Role
from service.streams.operators import AnyOperator
from service.streams.operators.functions import FunctionSpec
from service.streams.operators.windows import WindowSpec
from service.streams.records import Layout, StoreType


class UpstreamView(BaseModel):
    """What the operators before make of records."""

    is_table: bool
    window: WindowSpec | None
    is_delayed: bool
    is_final: bool


class LayoutView(BaseModel):
    """One layout that the entries of a store may have."""

    id: int
    aggregates: dict[str, FunctionSpec]


class StoreSpecView(BaseModel):
    """What a replica has to know of a store."""

    name: str
    operator: str
    type: StoreType
    changelog: str
    kind: str
    layout: Layout
    interval_ms: int | None
    layouts: list[LayoutView] | None = None


class OperatorNodeView(BaseModel):
    """An operator of a sub-topology."""

    name: str
    op: str
    spec: AnyOperator
    store: StoreSpecView | None = None
    upstream: UpstreamView
    parent: int | None = None


class SinkNodeView(BaseModel):
    """A stream that results of a sub-topology go to."""

    stream: str
    where: str | None = None
    parent: int | None = None
    upstream: UpstreamView
    number: int | None = None


class RepartitionView(BaseModel):
    """An internal stream with which tasks of another sub-topology go on."""

    stream: str
    operator: str
    targets: int
    by: str | None = None
    parent: int | None = None
    upstream: UpstreamView


class SubTopologyView(BaseModel):
    """What one task runs."""

    id: int
    sources: list[str]
    nodes: list[OperatorNodeView]
    sinks: list[SinkNodeView]
    partitions: int
    dropped: str | None = None
    keeps_failed_alone: bool = False
    repartitions: list[RepartitionView] = []
    upstreams: list[int] = []


class PointView(BaseModel):
    """A place in a picture, px from its top left."""

    x: float
    y: float


class BoxView(BaseModel):
    """A box of a picture: of a stream, an operator, or around a sub-topology."""

    role: Role
    name: Annotated[str, Field(description="Of the stream or operator; the number of a sub-topology.")]
    sub_topology: Annotated[int | None, Field(description="The one that it belongs to; null: a source of users.")]
    counted_as: Annotated[str | None, Field(description="Its name in `flow` of the job's metrics.")]
    lines: Annotated[list[str], Field(description="What stands in it, its name first, each cut to fit.")]
    x: Annotated[float, Field(description="Of its left edge, px.")]
    y: Annotated[float, Field(description="Of its upper edge, px.")]
    width: Annotated[float, Field(description="px")]
    height: Annotated[float, Field(description="px; with room for two lines more, but of sub-topologies and entries.")]


class ArrowView(BaseModel):
    """From one box of a topology to the next."""

    points: Annotated[list[PointView], Field(description="From corner to corner; the last one is its head.")]


class TopologyLayoutView(BaseModel):
    """Where the boxes of a topology lie in a picture, and how arrows run from one to the next."""

    width: Annotated[float, Field(description="px")]
    height: Annotated[float, Field(description="px")]
    boxes: list[BoxView]
    arrows: list[ArrowView]


class TopologyView(BaseModel):
    """A compiled job."""

    job: str
    sub_topologies: list[SubTopologyView]
    layout: Annotated[TopologyLayoutView | None, Field(description="Where asked for.")] = None

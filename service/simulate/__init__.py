"""`POST /v1/jobs:simulate`: a job over records of the request, with real operators and replicas, nothing kept."""

from service.simulate.request import BareSimulateRequest, SimulateRequest, written_values
from service.simulate.run import simulate

__all__ = ["BareSimulateRequest", "SimulateRequest", "simulate", "written_values"]

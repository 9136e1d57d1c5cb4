"""`POST /v1/jobs:simulate`: a job over records of the request, with real operators and replicas, nothing kept.

And the processes that this takes, within bounds; the conditions of tails are evaluated in such ones too (`filters`).
"""

from service.simulate.request import BareSimulateRequest, SimulateRequest, written_values
from service.simulate.run import simulate

__all__ = ["BareSimulateRequest", "SimulateRequest", "simulate", "written_values"]

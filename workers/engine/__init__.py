"""The embedded engine: a paged prefix cache without a GPU that speaks vLLM's HTTP and ZeroMQ."""

from workers.engine.faults import EventFaults, Faults, HttpFaults
from workers.engine.options import EngineOptions
from workers.engine.run import RunningEngine, run_engine

__all__ = [
    "EngineOptions",
    "EventFaults",
    "Faults",
    "HttpFaults",
    "RunningEngine",
    "run_engine",
]

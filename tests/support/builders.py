"""Small builders of the values that tests pass around."""

from typing import Any

from router.replicas import Replica
from router.routing import Candidate, Ttft


class ManualClock:
    """A monotonic clock that stands until it is told to go on. Seconds."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        self.now += seconds


class NoSources:
    """`Sources` of replicas that publish nothing."""

    async def open(self, replica: Replica) -> None:
        return None


def candidate(replica_id: str, **values: Any) -> Candidate:
    """An idle, empty candidate of middling speed, but for `values`."""
    values.setdefault("ttft", Ttft(base_ms=20.0, ms_per_token=0.1, ms_per_running=0.5))
    values.setdefault("matched_tokens", values.get("hit_tokens", 0))
    return Candidate(replica_id, **values)


def replica(replica_id: str, url: str = "http://127.0.0.1:1", **values: Any) -> Replica:
    return Replica(replica_id, url, **values)


def model_rows(*names: str, adapter_of: str | None = None) -> dict[str, dict[str, Any]]:
    """Rows of a GET /v1/models: the first is the base model, others are plain unless adapters."""
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        parent = adapter_of if name != adapter_of else None
        rows[name] = {"id": name, "object": "model", "parent": parent}
    return rows

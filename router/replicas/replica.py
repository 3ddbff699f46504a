"""A replica: one engine with one KV cache that can serve a model."""

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

ReplicaId: TypeAlias = str
Role: TypeAlias = Literal["both", "decode", "prefill", "encode"]


@dataclass(frozen=True, slots=True)
class Replica:
    """Who a replica is and where it is reached. Nothing in it changes while it lives.

    `url`: base of its HTTP API, without a trailing slash. `events_url`, `replay_url`: ZeroMQ
    endpoints to dial (None: it publishes nothing that we dial). `topic`: subscription prefix.
    `rank`: its data-parallel rank behind a URL that several replicas share. `cache_tokens`: how
    many its cache holds, for one that doesn't say so itself. `distance_ms`: there and back.
    `model`, `adapters`: what its deployment says that it serves. `role`: its part in serving.
    """

    id: ReplicaId
    url: str
    events_url: str | None = None
    replay_url: str | None = None
    topic: str = ""
    rank: int | None = None
    cache_tokens: int | None = None
    distance_ms: float = 0.0
    model: str = ""
    adapters: tuple[str, ...] = ()
    role: Role = "both"

    @property
    def answers(self) -> bool:
        """Whether clients' requests may go there: who only prefills or encodes ends none."""
        return self.role in ("both", "decode")

    def is_same_engine(self, other: "Replica") -> bool:
        """Whether nothing but what it is said to serve differs: its cache is the same."""
        return replace(self, model=other.model, adapters=other.adapters, role=other.role) == other

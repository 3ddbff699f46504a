"""The share of prompts that a new replica may get: it grows, and then nobody speaks of it again."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from xxhash import xxh3_64_intdigest

from router.replicas import ReplicaId
from router.routing.cost import predicted_ttft_ms
from router.routing.query import Candidate, RouteQuery

KEYS: Final = float(2**64)
MOST_HELD: Final = 0.999
"""Who is held is new, however large its share."""


@dataclass(slots=True)
class Ramp:
    """With a share of 0.1 a new replica gets the prompts of a tenth of the sessions and beginnings,
    always the same ones and more with time; and any other that would see its first token there ten
    times sooner than at the rest, for a fleet that drowns does not wait.

    `ramp_s`: until the share is 1; 0: at once. A replica whose share is 0 gets nothing but what
    nobody else could take. `on_settled`: gets a replica that is not new any more.
    """

    ramp_s: float = 0.0
    on_settled: Callable[[ReplicaId], None] = lambda replica_id: None
    _since: dict[ReplicaId, float] = field(default_factory=dict)
    _held: dict[ReplicaId, float] = field(default_factory=dict)

    def hold(self, replica_id: ReplicaId, share: float = 0.0) -> None:
        """It is new, and this is its share until somebody says otherwise."""
        self._held[replica_id] = share

    def begin(self, replica_id: ReplicaId, now: float) -> None:
        """From now on its share grows, from where it was held."""
        self._since[replica_id] = now - self.ramp_s * self._held.pop(replica_id, 0.0)

    def forget(self, replica_id: ReplicaId) -> None:
        """It left, or is down."""
        self._since.pop(replica_id, None)
        self._held.pop(replica_id, None)

    @property
    def is_idle(self) -> bool:
        """Nobody is new."""
        return not self._since and not self._held

    def share(self, replica_id: ReplicaId, now: float) -> float:
        """0 to 1."""
        if (held := self._held.get(replica_id)) is not None:
            return min(held, MOST_HELD)
        since = self._since.get(replica_id)
        if since is None:
            return 1.0
        if now - since < self.ramp_s:
            return max(0.0, (now - since) / self.ramp_s)
        if self._since.pop(replica_id, None) is not None:
            self.on_settled(replica_id)
        return 1.0

    def admitted(
        self, query: RouteQuery, candidates: Sequence[Candidate], now: float
    ) -> Sequence[Candidate]:
        """Those that may get this prompt; all, if otherwise nobody might."""
        shares = {c.replica_id: self.share(c.replica_id, now) for c in candidates}
        settled = [c for c in candidates if shares[c.replica_id] >= 1.0]
        if not settled or len(settled) == len(candidates):
            return candidates
        soonest_ms = min(predicted_ttft_ms(query, c) for c in settled)

        def may_take(candidate: Candidate) -> bool:
            share = shares[candidate.replica_id]
            is_its_key = _place(candidate.replica_id, query.ring_key) < share
            return is_its_key or predicted_ttft_ms(query, candidate) < share * soonest_ms

        return [c for c in candidates if shares[c.replica_id] >= 1.0 or may_take(c)]


def _place(replica_id: ReplicaId, key: str) -> float:
    """Where among all keys this one is for the replica, 0 to 1: the same from every router."""
    return xxh3_64_intdigest(f"{replica_id} {key}".encode("utf-8", "surrogatepass")) / KEYS

"""What it costs others that a full cache takes in a prompt: something else is evicted for it."""

from dataclasses import dataclass, field
from typing import Final

from router.replicas import ReplicaId

FADING: Final = 0.99
"""Of what was asked for, the last hundred prompts or so count."""


@dataclass(slots=True)
class Room:
    """Caches keep all until they are full, and then evict as much as they take in.

    Full is who was given as much to compute and to answer as it can hold: by this router, since it
    knows the replica. Of several routers each sees a part, so what they find full is full.
    """

    _taken: dict[ReplicaId, int] = field(default_factory=dict)
    _asked_tokens: float = 0.0
    _held_tokens: float = 0.0

    def take(self, replica_id: ReplicaId, tokens: int) -> None:
        """It keeps so many more tokens."""
        self._taken[replica_id] = self._taken.get(replica_id, 0) + tokens

    def forget(self, replica_id: ReplicaId) -> None:
        """What it holds is not known any more."""
        self._taken.pop(replica_id, None)

    def ask(self, prompt_tokens: int, held_tokens: int) -> None:
        """A prompt came of which somebody held so much."""
        self._asked_tokens = FADING * self._asked_tokens + prompt_tokens
        self._held_tokens = FADING * self._held_tokens + min(held_tokens, prompt_tokens)

    @property
    def reuse(self) -> float:
        """What share of the prompts of late was held by somebody, 0 to 1."""
        return self._held_tokens / self._asked_tokens if self._asked_tokens > 0.0 else 0.0

    def evicted(self, replica_id: ReplicaId, cache_tokens: int | None) -> float:
        """Of a token taken in by a cache of this size, how much of another one is computed again
        for it: none before it is full or while its size isn't known, and then as large a share as
        prompts are of what is held."""
        if not cache_tokens or self._taken.get(replica_id, 0) < cache_tokens:
            return 0.0
        return self.reuse

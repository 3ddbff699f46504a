"""What a policy is asked, and what it may know of each replica."""

from msgspec import Struct

from router.index.tiers import Load
from router.replicas import ReplicaId
from router.routing.ttft import Ttft


class RouteQuery(Struct, frozen=True, gc=False):
    """One prompt. `ring_key`: what consistent hashing is over (its session, else its beginning).

    `prompt_tokens` is 0 when the prompt could not be tokenized. `moved_to`: where its session went
    when it was moved away from where consistent hashing has it. `unseen_s`: for how long nothing is
    heard of what other routers send.
    """

    prompt_tokens: int
    ring_key: str
    moved_to: ReplicaId | None = None
    unseen_s: float = 0.0


class Candidate(Struct, frozen=True, gc=False):
    """A replica that can take the request now.

    `hit_tokens`: prompt tokens that it holds or is computing; `matched_tokens`: those that the
    index says it holds. `wait_ms`: time to work off the prompts ahead. `running`: requests that
    decode there. `busy`: share of its time that it computed prompts of late; `mean_ms`: for how
    long each. `full`: share of its
    cache that requests in flight hold (0 if its size isn't known). `memory_ms`: the prompt's
    footprint as a share of that cache, times how long an answer takes. `memory_wait_ms`: until so
    much is free, by what ends there. `distance_ms`: the way there and back.
    `loaded_tokens`: those of the hit that it would load from a slower tier, in `load_ms`. `ttft`:
    what it has shown of its speed.
    """

    replica_id: ReplicaId
    ttft: Ttft
    matched_tokens: int = 0
    hit_tokens: int = 0
    wait_ms: float = 0.0
    queued_tokens: int = 0
    running: int = 0
    in_flight: int = 0
    busy: float = 0.0
    mean_ms: float = 0.0
    full: float = 0.0
    memory_ms: float = 0.0
    memory_wait_ms: float = 0.0
    distance_ms: float = 0.0
    loaded_tokens: int = 0
    load_ms: float = 0.0
    tiers: tuple[Load, ...] = ()
    """What slower tiers hold behind the match, the fastest first."""
    evicted: float = 0.0
    """How much of another token must be computed again for one that it takes in."""

    @property
    def expected_tokens(self) -> int:
        """Those of the hit that it is computing for somebody else."""
        return self.hit_tokens - self.loaded_tokens - self.matched_tokens

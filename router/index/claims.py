"""What a lane is made of: requests, what waits of them, and what was computed together."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from msgspec import Struct

from router.blocks import BlockHash
from router.index.load import pairs_of
from router.replicas import ReplicaId

SHORT_MS: Final = 5.0
"""Siblings know at once of a prompt that takes as long to compute, and what is coming of it: they
may choose in the same instant. Of shorter ones, and of what is over, they know the load a fraction
of a millisecond later, of all together, and nothing comes of them that an index doesn't know. A
prompt of which nothing is known may be long."""


class Reservation(Struct, eq=False):
    """One request's claim on one replica. `cost_ms`: prefill time that was predicted for it.

    A reply that isn't streamed shows no first token: `silent` ones count as computed when their
    predicted time has passed. `is_lesson`: whether its time says something about speed.
    """

    replica_id: ReplicaId
    uncached_tokens: int
    cost_ms: float
    prefix: Sequence[BlockHash]
    booked_at: float
    silent: bool = False
    prompt_tokens: int = 0
    block_size: int = 0
    is_lesson: bool = False
    reusing_ms: float = 0.0
    """What its hit takes: the replica is busy with it, but others need not wait for it."""
    step_ms: float = 0.0
    """What the step that computes it takes beyond `cost_ms`, whatever else is in that step."""
    host_ms: float = 0.0
    """What passes until it can be in a step, beside the replica's steps."""
    running_then: int = 0
    is_short: bool = False
    """What it computes is not worth waiting for, and what it reuses is held: see `SHORT_MS`."""
    computed_at: float | None = None
    decodes_since: float = 0.0
    """As `computed_at`, by prediction where no first token was seen."""
    left_tokens: int = -1
    """Of `uncached_tokens`, those that no step has computed yet, by prediction."""

    def __post_init__(self) -> None:
        self.left_tokens = self.uncached_tokens

    @property
    def left_ms(self) -> float:
        """Of `cost_ms`, what is left."""
        return self.cost_ms * self.left_tokens / max(self.uncached_tokens, 1)

    @property
    def left_pairs(self) -> int:
        """See `pairs_of`."""
        end = max(self.prompt_tokens, self.uncached_tokens)
        return pairs_of(end - self.left_tokens, end)


class Price(Protocol):
    """What is known of a replica's speed."""

    def computing_ms(self, uncached_tokens: int, hit_tokens: int, /) -> float: ...
    def reusing_ms(self, hit_tokens: int, /) -> float: ...
    def step_ms(self, running: int, /) -> float: ...


class Queue(Struct, frozen=True, gc=False):
    """What waits: tokens and pairs of tokens, the time that they still take, and `Load.late`."""

    tokens: int = 0
    pairs: int = 0
    wait_ms: float = 0.0
    late: float = 0.0


NO_QUEUE: Final = Queue()


@dataclass(slots=True)
class Computed:
    """Prompts whose first tokens came together, and the time since nobody was before them.

    `uncached_tokens`: theirs, less what steps before had computed of them, and what the same steps
    computed of prompts behind; `pairs` likewise. `hit_tokens`: the longest of their hits, for a
    step looks them up beside each other.
    """

    replica_id: ReplicaId
    began: float
    ended: float
    uncached_tokens: int
    hit_tokens: int
    running: int
    is_lesson: bool
    is_alone: bool
    """It found nobody before it: the time is from its booking, not from the step before."""
    pairs: int = 0

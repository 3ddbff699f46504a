"""One replica's requests in flight: which wait for their first token, which decode."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from msgspec import Struct

from router.blocks import BlockHash
from router.index.load import Load
from router.index.residency import Residency
from router.replicas import ReplicaId

DONE_AT_MOST: Final = 0.9
"""Of the step that runs, at most this share is believed to be done: a replica that is slower than
predicted must not look idle."""
STEP_TOKENS: Final = 8192
"""What engines compute in one step at most (vLLM on large GPUs); a longer prompt takes several."""
SAME_STEP: Final = 0.1
"""First tokens that follow within a tenth of the time that a step took are of the same step."""


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
    computed_at: float | None = None
    left_tokens: int = -1
    """Of `uncached_tokens`, those that no step has computed yet, by prediction."""

    def __post_init__(self) -> None:
        self.left_tokens = self.uncached_tokens

    @property
    def left_ms(self) -> float:
        """Of `cost_ms`, what is left."""
        return self.cost_ms * self.left_tokens / max(self.uncached_tokens, 1)


@dataclass(slots=True)
class Computed:
    """Prompts whose first tokens came together, and the time since nobody was before them.

    `uncached_tokens`: theirs, less what steps before had computed of them, and what the same steps
    computed of prompts behind. `hit_tokens`: the longest of their hits, for a step looks them up
    beside each other.
    """

    began: float
    ended: float
    uncached_tokens: int
    hit_tokens: int
    running: int
    is_lesson: bool
    is_alone: bool
    """It found nobody before it: the time is from its booking, not from the step before."""


@dataclass(slots=True)
class Lane:
    """`pending` is in order of booking: engines serve first come first.

    An engine computes in steps. Who waits when one ends is in the next; who comes while one runs
    waits for its end. `step_began`: when the one that runs did, by prediction.
    `known`: its load at `known_at`, while nothing waits and nothing has changed since.
    """

    pending: dict[int, Reservation] = field(default_factory=dict)
    running: dict[int, Reservation] = field(default_factory=dict)
    step_began: float = 0.0
    residency: Residency = field(default_factory=Residency)
    batch: Computed | None = None
    known: Load | None = None
    known_at: float = 0.0
    quiet_since: float = 0.0
    _tokens: int = 0
    _cost_ms: float = 0.0
    _step_cost_ms: float = 0.0
    """Of those that waited when the step began."""
    _silent: int = 0
    _soonest_ms: float = math.inf
    """No silent one that waits takes less."""

    def has(self, reservation: Reservation) -> bool:
        return id(reservation) in self.pending or id(reservation) in self.running

    def join(self, reservation: Reservation) -> None:
        """It is sent: it waits until its first token."""
        self.known = None
        if not self.pending:
            self.step_began = reservation.booked_at + reservation.host_ms / 1e3
            self._step_cost_ms = reservation.cost_ms
        self.pending[id(reservation)] = reservation
        self._tokens += reservation.uncached_tokens
        self._cost_ms += reservation.cost_ms
        if reservation.silent:
            self._silent += 1
            self._soonest_ms = min(self._soonest_ms, reservation.cost_ms)
        self.residency.add(reservation.prefix, reservation.block_size, reservation.prompt_tokens)

    def first_token(self, reservation: Reservation, now: float) -> Computed | None:
        """It waited, and decodes from now on. Returns the batch before, if this one ended it."""
        is_alone = self.step_began <= reservation.booked_at + reservation.host_ms / 1e3
        since = reservation.booked_at if is_alone else self.step_began
        computed_tokens = self._compute(reservation, since, now)
        self._decodes(reservation, now)
        reservation.computed_at = now
        batch, hit_tokens = self.batch, reservation.prompt_tokens - reservation.uncached_tokens
        if batch is not None and _is_same_step(batch, now):
            batch.uncached_tokens += computed_tokens
            batch.hit_tokens = max(batch.hit_tokens, hit_tokens)
            batch.is_lesson &= reservation.is_lesson
            return None
        self.batch = Computed(
            since, now, computed_tokens, hit_tokens, reservation.running_then,
            reservation.is_lesson, is_alone,
        )  # fmt: skip
        return batch

    def _compute(self, reservation: Reservation, since: float, now: float) -> int:
        """It is computed: how many tokens were, in the steps since then. O(those in one step).

        An engine fills a prompt's last step with what waits behind, as far as that goes, and so a
        prompt's time is also theirs; and it finds theirs begun when their own turn comes.
        """
        computed = reservation.left_tokens
        self._work_off(reservation, computed)
        if self.batch is not None and _is_same_step(self.batch, now):
            return computed  # what was behind is counted with the first of the step
        steps = max(1, -(-computed // STEP_TOKENS))
        room = steps * STEP_TOKENS - computed
        last_step_began = now - (now - since) / steps
        for other in self.pending.values():
            if room <= 0 or other.booked_at + other.host_ms / 1e3 >= last_step_began:
                break
            filled = min(other.left_tokens, room)
            self._work_off(other, filled)
            computed += filled
            room -= filled
        return computed

    def _work_off(self, reservation: Reservation, tokens: int) -> None:
        before_ms = reservation.left_ms
        reservation.left_tokens -= tokens
        self._tokens -= tokens
        self._cost_ms -= before_ms - reservation.left_ms

    def leave(self, reservation: Reservation, now: float) -> None:
        """It is over, whether it waited or decoded."""
        self.known = None
        self.residency.drop(reservation.prefix, reservation.block_size, reservation.prompt_tokens)
        if id(reservation) in self.pending:
            self._leave_queue(reservation, now)
        else:
            del self.running[id(reservation)]

    def queue(self, now: float) -> tuple[int, float, int, int]:
        """Tokens queued, the time that they still take in ms, how many decode, how many wait."""
        if self._silent:
            self._settle_silent(now)
        if not self.pending:
            return 0, 0.0, len(self.running), 0
        head = next(iter(self.pending.values()))
        step_ms = head.step_ms + self._in_step_ms(head)
        # what comes now passes through the host while the step goes on
        done_ms = (now - self.step_began) * 1e3 + head.host_ms
        left_ms = head.step_ms + self._cost_ms - min(done_ms, DONE_AT_MOST * step_ms)
        return self._tokens, max(0.0, left_ms), len(self.running), len(self.pending)

    def _in_step_ms(self, head: Reservation) -> float:
        """What the prompts in the step that runs take."""
        most_ms = head.left_ms * max(1.0, STEP_TOKENS / max(head.left_tokens, 1))
        return min(max(self._step_cost_ms, head.left_ms), most_ms)

    def resident(self, answer_tokens: float) -> int:
        """Tokens of the cache that requests in flight hold; answers are half done in the mean."""
        return self.residency.tokens + round(answer_tokens / 2 * len(self.running))

    def _decodes(self, reservation: Reservation, now: float) -> None:
        self._leave_queue(reservation, now)
        self.running[id(reservation)] = reservation

    def _leave_queue(self, reservation: Reservation, now: float) -> None:
        self.known = None
        was_head = next(iter(self.pending)) == id(reservation)
        del self.pending[id(reservation)]
        self._silent -= reservation.silent
        if self.pending:
            self._work_off(reservation, reservation.left_tokens)
            if was_head:
                head = next(iter(self.pending.values()))
                self.step_began = max(now, head.booked_at + head.host_ms / 1e3)
                self._step_cost_ms = self._cost_ms
        else:  # exactly: a sum of floats keeps what was rounded
            self._tokens, self._cost_ms, self.quiet_since = 0, 0.0, now

    def _settle_silent(self, now: float) -> None:
        if (now - self.step_began) * 1e3 < self._soonest_ms:
            return
        for reservation in [r for r in self.pending.values() if r.silent]:
            if (now - self.step_began) * 1e3 >= reservation.cost_ms:
                self._decodes(reservation, now)
        waiting = [r.cost_ms for r in self.pending.values() if r.silent]
        self._soonest_ms = min(waiting, default=math.inf)


def _is_same_step(batch: Computed, now: float) -> bool:
    return now - batch.ended <= SAME_STEP * (batch.ended - batch.began)

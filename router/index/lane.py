"""One replica's requests in flight: which wait for their first token, which decode."""

import math
from dataclasses import dataclass, field
from typing import Final

from router.index.claims import NO_QUEUE, Computed, Price, Queue, Reservation
from router.index.load import Answers, Load
from router.index.residency import Residency

DONE_AT_MOST: Final = 0.9
"""Of the step that runs, at most this share is believed to be done: a replica that is slower than
predicted must not look idle."""
SAME_STEP: Final = 0.1
"""First tokens that follow within a tenth of the time that a step took are of the same step."""

STEP_TOKENS: Final = 8192
"""What engines compute in one step at most (vLLM on large GPUs)."""


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
    _since: float = 0.0
    """The sum of when those that decode began to."""
    _filled: list[tuple[Reservation, int]] = field(default_factory=list)
    """What its last step computed of those behind, as is thought."""
    _tokens: int = 0
    _pairs: int = 0
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
        self._pairs += reservation.left_pairs
        self._cost_ms += reservation.cost_ms
        if reservation.silent:
            self._silent += 1
            self._soonest_ms = min(self._soonest_ms, reservation.cost_ms)
        self.residency.add(reservation.prefix, reservation.block_size, reservation.prompt_tokens)

    def first_token(self, reservation: Reservation, now: float) -> Computed | None:
        """It waited, and decodes from now on. Returns the batch before, if it was open still."""
        before = self.over(now)
        is_alone = self.step_began <= reservation.booked_at + reservation.host_ms / 1e3
        since = reservation.booked_at if is_alone else self.step_began
        computed_tokens, pairs = self._compute(reservation, since, now)
        self._decodes(reservation, now)
        reservation.computed_at = now
        hit_tokens = reservation.prompt_tokens - reservation.uncached_tokens
        if (batch := self.batch) is not None:
            batch.uncached_tokens += computed_tokens
            batch.pairs += pairs
            batch.hit_tokens = max(batch.hit_tokens, hit_tokens)
            batch.is_lesson &= reservation.is_lesson
            return None
        self.batch = Computed(
            reservation.replica_id, since, now, computed_tokens, hit_tokens,
            reservation.running_then, reservation.is_lesson, is_alone, pairs,
        )  # fmt: skip
        return before

    def over(self, now: float) -> Computed | None:
        """The last batch, once no other first token can be of its step. Each one once."""
        if (batch := self.batch) is None or _is_same_step(batch, now):
            return None
        self._give_back(batch)
        self.batch = None
        return batch

    def _give_back(self, batch: Computed) -> None:
        """Who waits still, though the step was thought to have held all of it, was not in it:
        steps hold less than that, or it came later. What else was in the step is as uncertain, so
        it teaches nothing. O(those thought to be in the step)."""
        head = next(iter(self.pending.values()), None)
        if head is None or head.left_tokens > 0:
            return
        for other, tokens in self._filled:
            if id(other) in self.pending:
                batch.is_lesson = False
                batch.uncached_tokens -= tokens
                batch.pairs += self._work_off(other, -tokens)

    def reprice(self, price: Price) -> None:
        """More is known of how fast the replica is than when these were sent. O(waiting)."""
        before_ms, self._cost_ms = self._cost_ms, 0.0
        for one in self.pending.values():
            hit_tokens = max(one.prompt_tokens - one.uncached_tokens, 0)
            one.cost_ms = price.computing_ms(one.uncached_tokens, hit_tokens)
            one.reusing_ms = price.reusing_ms(hit_tokens)
            one.step_ms = price.step_ms(one.running_then) + one.reusing_ms
            self._cost_ms += one.left_ms
        if before_ms > 0.0:
            self._step_cost_ms *= self._cost_ms / before_ms

    def _compute(self, reservation: Reservation, since: float, now: float) -> tuple[int, int]:
        """It is computed: how many tokens and pairs were, in the steps since then. O(those in one
        step).

        An engine fills a prompt's last step with what waits behind, as far as that goes, and so a
        prompt's time is also theirs; and it finds theirs begun when their own turn comes.
        """
        computed = reservation.left_tokens
        pairs = self._work_off(reservation, computed)
        if self.batch is not None:
            return computed, pairs  # what was behind is counted with the first of the step
        self._filled = []
        steps = max(1, -(-computed // STEP_TOKENS))
        room = steps * STEP_TOKENS - computed
        last_step_began = now - (now - since) / steps
        for other in self.pending.values():
            if room <= 0 or other.booked_at + other.host_ms / 1e3 >= last_step_began:
                break
            filled = min(other.left_tokens, room)
            pairs += self._work_off(other, filled)
            self._filled.append((other, filled))
            computed += filled
            room -= filled
        return computed, pairs

    def _work_off(self, reservation: Reservation, tokens: int) -> int:
        """So many of its tokens are computed; returns their pairs."""
        before_ms, pairs = reservation.left_ms, reservation.left_pairs
        reservation.left_tokens -= tokens
        pairs -= reservation.left_pairs
        self._tokens -= tokens
        self._pairs -= pairs
        self._cost_ms -= before_ms - reservation.left_ms
        return pairs

    def leave(self, reservation: Reservation, now: float) -> None:
        """It is over, whether it waited or decoded."""
        self.known = None
        self.residency.drop(reservation.prefix, reservation.block_size, reservation.prompt_tokens)
        if id(reservation) in self.pending:
            self._leave_queue(reservation, now)
        else:
            del self.running[id(reservation)]
            self._since = self._since - reservation.decodes_since if self.running else 0.0

    def queue(self, now: float) -> Queue:
        """What waits for its first token, as of now."""
        if self._silent:
            self._settle_silent(now)
        if not self.pending:
            return NO_QUEUE
        head = next(iter(self.pending.values()))
        step_ms = head.step_ms + self._in_step_ms(head)
        # what comes now passes through the host while the step goes on
        passed_ms = (now - self.step_began) * 1e3
        done_ms = min(passed_ms + head.host_ms, DONE_AT_MOST * step_ms)
        left_ms = max(0.0, head.step_ms + self._cost_ms - done_ms)
        late = passed_ms / step_ms if head.is_lesson and step_ms > 0.0 else 0.0
        return Queue(self._tokens, self._pairs, left_ms, late)

    def _in_step_ms(self, head: Reservation) -> float:
        """What the prompts in the step that runs take."""
        most_ms = head.left_ms * max(1.0, STEP_TOKENS / max(head.left_tokens, 1))
        return min(max(self._step_cost_ms, head.left_ms), most_ms)

    def resident(self, answers: Answers, now: float) -> int:
        """Tokens of the cache that requests in flight hold: their prompts', and those of answers
        by how long they have decoded. In the mean no more than a whole answer: who decodes for
        longer than that may be stuck."""
        count = len(self.running)
        decoded_ms = min((now * count - self._since) * 1e3, answers.mean_ms * count)
        return self.residency.tokens + round(decoded_ms * answers.tokens_per_ms)

    def _decodes(self, reservation: Reservation, now: float) -> None:
        self._leave_queue(reservation, now)
        self.running[id(reservation)] = reservation
        reservation.decodes_since = now
        self._since += now

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
            self._tokens, self._pairs, self._cost_ms = 0, 0, 0.0
            self.quiet_since = now

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

"""What one engine step computes: continuous batching with a token budget, as vLLM's V1 scheduler.

Running sequences come first, in order of arrival, then waiting ones while budget, sequences and
blocks last. No clock and no I/O: the core decides when a planned step is over.
"""

from collections import deque
from dataclasses import dataclass, field

from workers.engine.pool import BlockPool
from workers.engine.sequence import Sequence


@dataclass(frozen=True, slots=True)
class Share:
    """One sequence's part of a step: `tokens` more behind the `context` that it has."""

    sequence: Sequence
    tokens: int
    context: int


@dataclass(slots=True)
class Step:
    """A planned step."""

    shares: list[Share] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    """Sequences that run from this step on (again, after preemption)."""
    preempted: list[Sequence] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Stored:
    """Blocks of a sequence that a step made matchable: numbers `first` to `last` - 1."""

    sequence: Sequence
    first: int
    last: int


class Scheduler:
    """Owns the queues. `block_size` in tokens; `max_tokens` is the budget of one step."""

    def __init__(
        self, pool: BlockPool, block_size: int, max_sequences: int, max_tokens: int
    ) -> None:
        self.pool = pool
        self.block_size = block_size
        self.waiting: deque[Sequence] = deque()
        self.running: list[Sequence] = []
        self._max_sequences = max_sequences
        self._max_tokens = max_tokens

    @property
    def has_work(self) -> bool:
        return bool(self.running or self.waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Its prompt and answer must fit the pool: the caller has checked."""
        self.waiting.append(sequence)

    def remove(self, sequence: Sequence) -> None:
        """A sequence has ended, by itself or not. Its blocks stay cached until evicted."""
        if sequence in self.running:
            self.running.remove(sequence)
        elif sequence in self.waiting:
            self.waiting.remove(sequence)
        self.pool.release(sequence.blocks)
        sequence.blocks = []

    def plan(self) -> Step:
        """Choose the next step's sequences and take the blocks that they need."""
        step = Step()
        budget = self._continue_running(step, self._max_tokens)
        if not step.preempted:
            self._admit_waiting(step, budget)
        return step

    def commit(self, step: Step) -> list[Stored]:
        """The step has run: what it computed becomes matchable."""
        stored: list[Stored] = []
        for share in step.shares:
            sequence = share.sequence
            sequence.computed += share.tokens
            full = sequence.computed // self.block_size
            if full > sequence.stored:
                stored.append(Stored(sequence, sequence.stored, full))
                self._store(sequence, full)
        self.pool.end_step()
        return stored

    def _store(self, sequence: Sequence, full: int) -> None:
        for number in range(sequence.stored, full):
            self.pool.store(sequence.blocks[number], sequence.chain.engine[number])
        sequence.stored = full

    def _continue_running(self, step: Step, budget: int) -> int:
        index = 0
        while budget and index < len(self.running):
            sequence = self.running[index]
            count = min(sequence.uncomputed, budget)
            missing = self._missing_blocks(sequence, sequence.computed + count)
            if missing and not self._make_room(sequence, missing, step):
                break
            self._take(step, sequence, count, missing)
            budget -= count
            index += 1
        return budget

    def _make_room(self, sequence: Sequence, missing: int, step: Step) -> bool:
        """Preempt from the tail until `missing` blocks are free; False if it hit `sequence`."""
        while self.pool.free_count < missing:
            victim = self.running.pop()
            self.pool.release(victim.forget_progress())
            self.waiting.appendleft(victim)
            step.preempted.append(victim)
            if victim is sequence:
                return False
        return True

    def _admit_waiting(self, step: Step, budget: int) -> None:
        while budget and self.waiting and len(self.running) < self._max_sequences:
            sequence = self.waiting[0]
            # The last token is always computed: its logits are what the answer starts from.
            reusable = (len(sequence.tokens) - 1) // self.block_size
            hits = self.pool.match(sequence.chain.engine, reusable)
            whole = self._missing_blocks(sequence, len(sequence.tokens)) - len(hits)
            if whole + self.pool.idle(hits) > self.pool.free_count:
                break  # first come, first served: nobody overtakes
            self.waiting.popleft()
            self.running.append(sequence)
            step.admitted.append(sequence)
            self._reuse(sequence, hits)
            count = min(sequence.uncomputed, budget)
            missing = self._missing_blocks(sequence, sequence.computed + count)
            self._take(step, sequence, count, missing)
            budget -= count

    def _reuse(self, sequence: Sequence, hits: list[int]) -> None:
        self.pool.acquire(hits)
        sequence.blocks = hits
        sequence.stored = len(hits)
        sequence.computed = len(hits) * self.block_size
        if not sequence.preemptions:
            sequence.hit_tokens = sequence.computed

    def _take(self, step: Step, sequence: Sequence, count: int, missing: int) -> None:
        if missing:
            sequence.blocks += self.pool.allocate(missing)
        full = (sequence.computed + count) // self.block_size
        for number in range(sequence.stored, full):
            self.pool.promise(sequence.blocks[number], sequence.chain.engine[number])
        step.shares.append(Share(sequence, count, sequence.computed))

    def _missing_blocks(self, sequence: Sequence, tokens: int) -> int:
        return -(-tokens // self.block_size) - len(sequence.blocks)

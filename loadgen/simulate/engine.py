"""One replica in virtual time: the embedded engine's pool, scheduler and profile.

Steps that only decode are advanced in one go, until a sequence ends, one arrives or the cache is
short: between those every step has the same sequences, and its time is known in closed form.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadgen.simulate.job import Job
from loadgen.simulate.timeline import Timeline
from router.blocks import BlockRemoved, BlockStored, Event
from workers.engine.pool import BlockPool
from workers.engine.profile import Profile
from workers.engine.scheduler import Scheduler, Step
from workers.engine.sequence import Finish
from workers.engine.sequence import Sequence as EngineSequence


def _unheard(events: Sequence[Event]) -> None:
    pass


@dataclass(slots=True)
class _Run:
    """Steps that all have the same sequences: `first_s` the first takes, each later one more."""

    began: float
    steps: int
    first_s: float
    more_s: float

    def time_of(self, steps: int) -> float:
        return self.began + steps * self.first_s + self.more_s * steps * (steps - 1) / 2

    def steps_by(self, now: float) -> int:
        """Whole steps done by then."""
        passed = max(0.0, now - self.began)
        if self.more_s <= 0:
            return int(passed / self.first_s)
        linear = self.first_s - self.more_s / 2
        root = math.sqrt(linear * linear + 2 * self.more_s * passed)
        return int((root - linear) / self.more_s)


@dataclass(slots=True)
class Tally:
    """What an engine has done so far."""

    prompt_tokens: int = 0
    hit_tokens: int = 0
    answer_tokens: int = 0
    requests: int = 0
    preemptions: int = 0
    most_waiting: int = 0


@dataclass(slots=True)
class SimEngine:
    """One replica. `slowness` 2 takes twice the profile's time for everything."""

    profile: Profile
    block_size: int
    num_blocks: int
    timeline: Timeline
    publish: Callable[[Sequence[Event]], None]
    slowness: float = 1.0
    tally: Tally = field(default_factory=Tally)
    is_dead: bool = False
    pool: BlockPool = field(init=False)
    scheduler: Scheduler = field(init=False)
    _step: Step | None = None
    _run: _Run | None = None
    _is_steady: bool = False
    _was_refused: bool = False
    _wakes: int = 0
    _wake_s: float = 0.0
    _arriving: dict[int, tuple[float, Job]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pool = BlockPool(self.num_blocks)
        self.scheduler = Scheduler(
            self.pool,
            self.block_size,
            self.profile.max_num_seqs,
            self.profile.max_num_batched_tokens,
        )

    @property
    def waiting(self) -> int:
        return len(self.scheduler.waiting)

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    def submit(self, job: Job) -> None:
        """A request arrives; it can be scheduled after the profile's host time."""
        ready_s = self.timeline.now + self.slowness * self.profile.host_ms / 1e3
        self._arrive(ready_s, job)

    def kill(self) -> None:
        """It dies: everything in it ends, nothing more is published."""
        self.is_dead = True
        self._wakes += 1
        for job in [*self.scheduler.running, *self.scheduler.waiting]:
            self._end(job, Finish.ABORT)

    def twin(self, timeline: Timeline) -> SimEngine:
        """The same state on another timeline, whose future nobody hears of."""
        other = SimEngine(
            self.profile, self.block_size, self.num_blocks, timeline, _unheard, self.slowness
        )
        jobs = {id(job): job.twin() for job in [*self._jobs(), *self.scheduler.waiting]}  # type: ignore[attr-defined]
        other.pool = other.scheduler.pool = self.pool.twin()
        other.scheduler.running = [jobs[id(job)] for job in self.scheduler.running]
        other.scheduler.waiting.extend(jobs[id(job)] for job in self.scheduler.waiting)
        other._is_steady, other._was_refused = self._is_steady, self._was_refused
        if self._run is not None:
            other._run = replace(self._run)
            other._wake_at(self._wake_s, other._finish_run)
        if self._step is not None:
            shares = [replace(s, sequence=jobs[id(s.sequence)]) for s in self._step.shares]
            admitted = [jobs[id(job)] for job in self._step.admitted]
            other._step = Step(shares, [*admitted], self._step.preempted)
            other._wake_at(self._wake_s, other._finish_step)
        for ready_s, job in self._arriving.values():
            other._arrive(ready_s, job.twin())
        return other

    def _arrive(self, ready_s: float, job: Job) -> None:
        self._arriving[id(job)] = ready_s, job
        self.timeline.at(ready_s, lambda: self._ready(job))

    def _ready(self, job: Job) -> None:
        del self._arriving[id(job)]
        if self.is_dead:
            job.on_end(Finish.ABORT)
            return
        is_first = not self.scheduler.waiting
        self.scheduler.add(job)
        self.tally.most_waiting = max(self.tally.most_waiting, self.waiting)
        if not is_first:
            return  # first come, first served: the head of the queue has been tried
        self._is_steady = False
        if self._run is not None:
            self._cut_short(self._run)
        elif self._step is None:
            self._start()

    def _cut_short(self, run: _Run) -> None:
        """The step that runs now is the run's last."""
        run.steps = min(run.steps, run.steps_by(self.timeline.now) + 1)
        self._wake_at(run.time_of(run.steps), self._finish_run)

    def _wake_at(self, when: float, action: Callable[[], None]) -> None:
        self._wakes += 1
        self._wake_s = when
        mine = self._wakes

        def wake() -> None:
            if mine == self._wakes:
                action()

        self.timeline.at(when, wake)

    def _start(self) -> None:
        if not self.scheduler.has_work:
            return
        if self._is_steady and (steps := self._steps_alike()) > 1:
            self._start_run(steps)
            return
        step = self.scheduler.plan()
        if not step.shares:
            raise RuntimeError("nothing fits: a sequence is larger than the whole cache")
        self._was_refused = bool(self.scheduler.waiting)
        self.tally.preemptions += len(step.preempted)
        for job in step.admitted:
            if not job.preemptions:
                self.tally.prompt_tokens += job.prompt_len
                self.tally.hit_tokens += job.hit_tokens
        self._step = step
        self._wake_at(
            self.timeline.now + self.slowness * self.profile.duration_s(step), self._finish_step
        )

    def _start_run(self, steps: int) -> None:
        running, profile = self.scheduler.running, self.profile
        count, context = len(running), sum(job.computed for job in running)
        first_ms = profile.step_ms + profile.decode_ms_per_sequence * count
        first_ms += profile.decode_ms_per_kv_token * context
        more_ms = profile.decode_ms_per_kv_token * count
        scale = self.slowness / 1e3
        self._run = _Run(self.timeline.now, steps, scale * first_ms, scale * more_ms)
        self._wake_at(self._run.time_of(steps), self._finish_run)

    def _steps_alike(self) -> int:
        """Decode steps until a sequence ends or free blocks run out."""
        steps = min(job.left for job in self._jobs())
        while steps > 1 and self._blocks_for(steps) > self.pool.free_count:
            steps //= 2
        return steps

    def _blocks_for(self, steps: int) -> int:
        size = self.block_size
        return sum(-(-(j.computed + steps) // size) - len(j.blocks) for j in self._jobs())

    def _jobs(self) -> list[Job]:
        return self.scheduler.running  # type: ignore[return-value]  # only jobs are submitted

    def _finish_run(self) -> None:
        run, self._run = self._run, None
        if run is None:
            return
        events: list[Event] = []
        steps, size = run.steps, self.block_size
        for job in self._jobs()[:]:
            job.computed += steps
            missing = -(-job.computed // size) - len(job.blocks)
            if missing > 0:
                job.blocks += self.pool.allocate(missing)
            job.grow(steps)
            full = job.computed // size
            if full > job.stored:
                for number in range(job.stored, full):
                    self.pool.store(job.blocks[number], job.chain.engine[number])
                events.append(self._stored(job, job.stored, full))
                job.stored = full
            if job.left <= 0:
                self._end(job, Finish.LENGTH)
        self._tell(events)
        self._start()

    def _finish_step(self) -> None:
        step, self._step = self._step, None
        if step is None:
            return
        stored = self.scheduler.commit(step)
        # A head that came during the step has not been tried; one that was there has been refused.
        is_tried = self._was_refused or not self.scheduler.waiting
        self._is_steady = is_tried and not step.admitted and not step.preempted
        events: list[Event] = [self._stored(s.sequence, s.first, s.last) for s in stored]
        for share in step.shares:
            job = share.sequence
            if job.uncomputed:
                self._is_steady = False
            else:
                self._sample(job)  # type: ignore[arg-type]
        self._tell(events)
        self._start()

    def _sample(self, job: Job) -> None:
        is_first = not job.answered
        job.grow(1)
        if is_first:
            self._is_steady = False
            job.on_first_token()
        if job.left <= 0:
            self._end(job, Finish.LENGTH)

    def _end(self, job: EngineSequence, finish: Finish) -> None:
        self._is_steady = False
        self.scheduler.remove(job)
        job.finish = finish
        self.tally.requests += 1
        self.tally.answer_tokens += job.answered
        job.on_end(finish)  # type: ignore[attr-defined]

    def _stored(self, job: EngineSequence, first: int, last: int) -> BlockStored:
        size, hashes = self.block_size, job.chain.engine
        return BlockStored(
            block_hashes=tuple(hashes[first:last]),
            parent_block_hash=hashes[first - 1] if first else None,
            token_ids=job.tokens[first * size : last * size],
            block_size=size,
            medium="GPU",
        )

    def _tell(self, events: list[Event]) -> None:
        if evicted := self.pool.take_evicted():
            events.insert(0, BlockRemoved(tuple(evicted), medium="GPU"))
        if events and not self.is_dead:
            self.publish(events)

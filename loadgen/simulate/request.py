"""The life of one simulated request: choose, claim, travel, first token, end."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from loadgen.simulate.engine import SimEngine
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import SimRouter
from loadgen.simulate.job import Job, make_job
from loadgen.simulate.outcome import Served
from loadgen.simulate.timeline import Timeline
from loadgen.simulate.traffic import Ask
from router.index.reservations import Reservation
from router.routing import Claim, Prefix
from workers.engine.sequence import Finish


@dataclass(slots=True)
class World:
    """What requests travel through. `open`: replicas that routers may choose."""

    fleet: Fleet
    timeline: Timeline
    engines: dict[str, SimEngine] = field(default_factory=dict)
    open: list[str] = field(default_factory=list)
    routers: list[SimRouter] = field(default_factory=list)


@dataclass(slots=True)
class Request:
    """One ask on its way. `on_end` is called once, with what is in the engine's cache then."""

    world: World
    router: SimRouter
    ask: Ask
    tokens: array[int]
    hashes: Sequence[int]
    answer_id: int
    served: Served
    on_end: Callable[[Sequence[int]], None]
    _told: list[tuple[SimRouter, Reservation]] = field(default_factory=list)
    _is_over: bool = False

    def send(self) -> str:
        """Choose and go; returns the replica."""
        world, served = self.world, self.served
        size = world.fleet.block_size
        prefix = Prefix(self.hashes, size)
        choice = self.router.choose(world.open, prefix, len(self.tokens), served.session)
        name = choice.decision.replicas[0]
        served.replica, served.router = name, self.router.number
        served.tries += 1
        served.predicted_ttft_ms = choice.decision.costs_ms.get(name)
        served.predicted_hit_tokens = choice.candidates[name].hit_tokens
        claim = self.router.chooser.claim(choice, name)
        self._share(claim)
        job = make_job(self.tokens, self.hashes, size, self.ask.output_tokens, self.answer_id)
        job.on_first_token = lambda: self._first_token(job, claim)
        job.on_end = lambda finish: self._end(job, claim, finish)
        way_s = world.fleet.network_s + world.fleet.reading_s
        world.timeline.after(way_s, lambda: world.engines[name].submit(job))
        return name

    def _share(self, claim: Claim) -> None:
        """Tell the other routers what was booked, as fast as they hear of it."""
        delay_s = self.world.fleet.load_sharing_s
        if delay_s is None:
            return
        booked = claim.reservation
        for other in self.world.routers:
            if other is not self.router:
                self.world.timeline.after(delay_s, self._teller(other, replace(booked)))

    def _teller(self, other: SimRouter, copy: Reservation) -> Callable[[], None]:
        def tell() -> None:
            if self._is_over or copy.replica_id != self.served.replica:
                return
            copy.is_lesson = False
            other.chooser.reservations.take(copy)
            self._told.append((other, copy))
            if self.served.first_token is not None:
                other.chooser.reservations.computed(copy)

        return tell

    def _first_token(self, job: Job, claim: Claim) -> None:
        self.served.first_token = self.world.timeline.now + self.world.fleet.network_s
        self.served.hit_tokens = job.hit_tokens
        claim.first_token()
        for other, copy in self._told:
            other.chooser.reservations.computed(copy)

    def _end(self, job: Job, claim: Claim, finish: Finish) -> None:
        claim.release(job.answered)
        for other, copy in self._told:
            other.chooser.reservations.release(copy, job.answered)
        self._told.clear()
        if finish is Finish.ABORT:
            # As the gateway: another replica while no byte has come; then the client asks again.
            if self.served.first_token is not None:
                self.served.asked, self.served.first_token = self.world.timeline.now, None
            self.send()
            return
        self._is_over = True
        self.served.ended = self.world.timeline.now + self.world.fleet.network_s
        self.on_end(job.chain.engine)

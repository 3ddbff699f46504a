"""The life of one simulated request: choose, claim, travel, first token, end."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from loadgen.simulate.engine import SimEngine
from loadgen.simulate.fleet import Fleet
from loadgen.simulate.gateway import FLEET, SimRouter
from loadgen.simulate.job import Job, make_job
from loadgen.simulate.outcome import Served
from loadgen.simulate.timeline import Timeline
from loadgen.simulate.traffic import Ask
from router.routing import Choice, Claim, Prefix
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

    def send(self) -> str | None:
        """Choose and go; returns the replica. None: it waits in the router."""
        choice = self._choose()
        if self.router.queue.holds(choice):
            self.router.queue.wait(self.served.tenant, self._choose, self._go)
            return None
        self._go(choice)
        return self.served.replica

    def _choose(self) -> Choice:
        prefix = Prefix(self.hashes, self.world.fleet.block_size)
        session = self.served.session
        return self.router.choose(self.world.open, prefix, len(self.tokens), session)

    def _go(self, choice: Choice) -> None:
        world, served = self.world, self.served
        size = world.fleet.block_size
        name = choice.decision.replicas[0]
        self.router.hot.note(FLEET, None, self.tokens.tobytes(), choice)
        served.replica, served.router = name, self.router.number
        served.tries += 1
        served.predicted_ttft_ms = choice.decision.costs_ms.get(name)
        served.predicted_hit_tokens = choice.candidates[name].hit_tokens
        self._share()  # until now nothing may have waited there
        claim = self.router.chooser.claim(choice, name)
        self._share()
        job = make_job(self.tokens, self.hashes, size, self.ask.output_tokens, self.answer_id)
        job.on_first_token = lambda: self._first_token(job, claim)
        job.on_end = lambda finish: self._end(job, claim, finish)
        way_s = world.fleet.network_s + world.fleet.reading_s
        world.timeline.after(way_s, lambda: world.engines[name].submit(job))

    def _share(self) -> None:
        """Tell the other routers what this one makes the replica do now, as fast as they hear."""
        world, delay_s, name = self.world, self.world.fleet.load_sharing_s, self.served.replica
        if delay_s is None or len(world.routers) == 1:
            return
        load, at = self.router.chooser.reservations.own_load(name), world.timeline.now

        def tell() -> None:
            for other in world.routers:
                if other is not self.router:
                    other.told.tell(str(self.router.number), name, load, at)

        world.timeline.after(delay_s, tell)

    def _first_token(self, job: Job, claim: Claim) -> None:
        self.served.first_token = self.world.timeline.now + self.world.fleet.network_s
        self.served.hit_tokens = job.hit_tokens
        claim.first_token()
        self._share()
        self.router.queue.changed()

    def _end(self, job: Job, claim: Claim, finish: Finish) -> None:
        claim.release(job.answered)
        self._share()
        self.router.queue.changed()
        if finish is Finish.ABORT:
            # As the gateway: another replica while no byte has come; then the client asks again.
            if self.served.first_token is not None:
                self.served.asked, self.served.first_token = self.world.timeline.now, None
            self.send()
            return
        self.served.ended = self.world.timeline.now + self.world.fleet.network_s
        self.on_end(job.chain.engine)

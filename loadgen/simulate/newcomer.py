"""A replica that is added under way: slow at first, warmed up, ramped up, as by the gateway."""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field

from loadgen.simulate.gateway import FLEET
from loadgen.simulate.job import make_job
from loadgen.simulate.request import World
from router.blocks.hashing import TYPE_CODE
from router.routing.hot import Beginning
from workers.engine.sequence import Finish


@dataclass(slots=True)
class Newcomer:
    """The first router warms it up; the others see that it is held until then."""

    world: World
    name: str
    _left: list[Beginning] = field(default_factory=list)
    _whole: int = 0
    _done: int = 0

    def start(self) -> None:
        world = self.world
        factor, slow_s = world.fleet.starting
        engine = world.engines[self.name]
        engine.slowness *= factor
        world.timeline.after(slow_s, lambda: setattr(engine, "slowness", engine.slowness / factor))
        for router in world.routers:
            router.chooser.ramp.hold(self.name)
        self._left = world.routers[0].hot.hottest({FLEET})[::-1]
        self._whole = sum(beginning.length for beginning in self._left)
        self._next()

    def _next(self) -> None:
        world = self.world
        if not self._left:
            for router in world.routers:
                router.chooser.ramp.begin(self.name, world.timeline.now)
            return
        beginning = self._left.pop()
        tokens = array(TYPE_CODE)
        tokens.frombytes(beginning.tokens)
        job = make_job(tokens, beginning.hashes, world.fleet.block_size, 1)
        job.on_end = lambda finish: self._computed(beginning, finish)
        world.engines[self.name].submit(job)

    def _computed(self, beginning: Beginning, finish: Finish) -> None:
        if finish is Finish.ABORT:
            return
        self._done += beginning.length
        for router in self.world.routers:
            router.chooser.ramp.hold(self.name, self._done / self._whole)
        self._next()

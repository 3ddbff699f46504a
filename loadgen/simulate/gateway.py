"""One router in virtual time: the real chooser with its own view of the replicas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random

from loadgen.simulate.fleet import Fleet
from loadgen.simulate.waiting import SimQueue
from router.blocks import AllBlocksCleared, BlockRemoved, BlockStored, Event
from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.index.told import Told
from router.routing import POLICIES, Ask, Choice, Chooser, Contender, Policy, Prefix, Speeds
from router.routing.hot import HotBeginnings, NothingHot
from router.routing.ramp import Ramp

FLEET = "model"


@dataclass(slots=True)
class SimRouter:
    """`number`: which of the routers; each hears the events and keeps its own books."""

    number: int
    chooser: Chooser
    index: MemoryIndex
    told: Told
    queue: SimQueue
    hot: HotBeginnings | NothingHot

    @classmethod
    def make(
        cls,
        number: int,
        make_policy: Callable[[Random], Policy],
        queue: SimQueue,
        fleet: Fleet,
        seed: int,
    ) -> SimRouter:
        clock = queue.timeline.clock
        index = MemoryIndex(clock=clock)
        late_s = fleet.load_sharing_s or 0.0
        told = Told(clock, late_s, unseen_s=late_s if fleet.routers > 1 else 0.0)
        speeds = Speeds()
        chooser = Chooser(
            index=index,
            reservations=Reservations(clock, others=told),
            speeds=speeds,
            policy=make_policy(Random(f"{seed} {number}")),
            clock=clock,
            ramp=Ramp(fleet.ramp_s, speeds.forget),
        )
        hot = HotBeginnings(clock, fleet.warm_tokens) if fleet.warm_tokens else NothingHot()
        return cls(number, chooser, index, told, queue, hot)

    def hear(self, replica_id: str, events: Sequence[Event]) -> None:
        """A batch of a replica's events arrived."""
        for event in events:
            match event:
                case BlockStored():
                    self.index.store(replica_id, event)
                case BlockRemoved():
                    self.index.remove(replica_id, event)
                case AllBlocksCleared():
                    self.index.clear(replica_id)

    def choose(
        self,
        replica_ids: Sequence[str],
        prefix: Prefix,
        prompt_tokens: int,
        session: str | None,
    ) -> Choice:
        contenders = [Contender(replica_id, FLEET, prefix) for replica_id in replica_ids]
        return self.chooser.consider(Ask(prompt_tokens, session), contenders)

    def forget(self, replica_id: str) -> None:
        """The replica left, or died: as the gateway does."""
        self.index.forget(replica_id)
        self.chooser.forget(replica_id)


def policy_maker(name: str) -> Callable[[Random], Policy]:
    """KeyError for an unknown policy."""
    return POLICIES[name]

"""Traffic, routers and engines on one timeline."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from loadgen.simulate.bounds import Bounds
from loadgen.simulate.engine import SimEngine
from loadgen.simulate.fleet import Change, Fleet
from loadgen.simulate.gateway import SimRouter
from loadgen.simulate.newcomer import Newcomer
from loadgen.simulate.outcome import Extras, Figures, Served, Slo, figures
from loadgen.simulate.regret import Oracle
from loadgen.simulate.request import Request, World
from loadgen.simulate.timeline import Timeline
from loadgen.simulate.traffic import (
    FIRST_ANSWER_ID,
    Ask,
    Dialogue,
    Segment,
    Stage,
    Traffic,
    tokens_of,
)
from loadgen.simulate.waiting import SimQueue
from router.blocks import Event, Hashes, hash_blocks
from router.routing import Policy

REMEMBERED_PROMPTS: Final = 2000
USUAL: Final = Slo()


@dataclass(frozen=True, slots=True)
class Result:
    """All requests of the measured stages in order of arrival, and what they amount to."""

    served: Sequence[Served]
    stages: dict[str, Figures]
    total: Figures


class Simulation:
    """One run of one policy. Everything follows from the arguments; nothing is read from outside.

    `oracle_every`: of so many requests one is compared with every other choice (0: none is).
    """

    def __init__(
        self,
        fleet: Fleet,
        traffic: Traffic,
        make_policy: Callable[[Random], Policy],
        seed: int = 0,
        oracle_every: int = 0,
    ) -> None:
        timeline = Timeline()
        self.world = World(fleet, timeline)
        self.world.routers += [
            SimRouter.make(
                number,
                make_policy,
                SimQueue(timeline, fleet.slo_ttft_ms, fleet.queue_wait_s),
                fleet,
                seed,
            )
            for number in range(fleet.routers)
        ]
        self.bounds = Bounds(fleet.block_size, fleet.num_blocks * fleet.replicas)
        self.oracle = Oracle(oracle_every)
        self._traffic = traffic
        self._rng = Random(f"simulation {seed}")
        self._served: list[Served] = []
        self._answers = FIRST_ANSWER_ID
        self._prompts: dict[tuple[Segment, ...], tuple[array[int], Hashes]] = {}
        self._turn = 0
        for _ in range(fleet.replicas):
            self._add_replica()

    def run(self, slo: Slo = USUAL) -> Result:
        """Stage after stage, each until all its requests have ended."""
        labels = [stage.label for stage in self._traffic.stages if stage.is_measured]
        for stage in self._traffic.stages:
            if labels and stage.label == labels[0]:
                self._book_changes()
            self.bounds.is_counting = stage.is_measured
            self._play(stage)
            self.world.timeline.run()
        served = [one for one in self._served if one.stage in labels]
        extras = self._extras()
        by_stage = {
            label: figures([one for one in served if one.stage == label], extras, slo)
            for label in labels
        }
        return Result(served, by_stage, figures(served, extras, slo))

    def _extras(self) -> Extras:
        engines = self.world.engines
        held = [set(engine.pool.copies()) for engine in engines.values()]
        return Extras(
            regret=self.oracle.regret,
            regret_later=self.oracle.later,
            copies=sum(map(len, held)) / max(len(set().union(*held)), 1),
            most_waiting=max(engine.tally.most_waiting for engine in engines.values()),
            bound=self.bounds.unlimited,
            pooled_bound=self.bounds.pooled,
            names=tuple(engines),
        )

    def _book_changes(self) -> None:
        for change in self.world.fleet.changes:
            self.world.timeline.after(change.at_s, _bound(self._change, change))

    def _change(self, change: Change) -> None:
        for _ in range(change.add):
            Newcomer(self.world, self._add_replica()).start()
        for _ in range(change.drain):
            self._leave(self.world.open[-1])
        for _ in range(change.kill):
            name = self.world.open[0]
            self._leave(name)
            self.world.engines[name].kill()

    def _leave(self, name: str) -> None:
        self.world.open.remove(name)
        for router in self.world.routers:
            router.forget(name)

    def _add_replica(self) -> str:
        fleet, number = self.world.fleet, len(self.world.engines)
        name = f"r{number:02d}"
        self.world.engines[name] = SimEngine(
            profile=fleet.profile,
            block_size=fleet.block_size,
            num_blocks=fleet.num_blocks,
            timeline=self.world.timeline,
            publish=lambda events: self._publish(name, events),
            slowness=fleet.slowness_of(number),
        )
        self.world.open.append(name)
        for router in self.world.routers:
            router.chooser.cache_tokens[name] = fleet.num_blocks * fleet.block_size
        return name

    def _publish(self, name: str, events: Sequence[Event]) -> None:
        fleet = self.world.fleet
        for router in self.world.routers:
            if fleet.event_loss and self._rng.random() < fleet.event_loss:
                continue
            delay_s = fleet.event_delay_s + self._rng.random() * fleet.event_jitter_s
            self.world.timeline.after(delay_s, self._hearer(router, name, events))

    def _hearer(self, router: SimRouter, name: str, events: Sequence[Event]) -> Callable[[], None]:
        def hear() -> None:
            if name in self.world.open:
                router.hear(name, events)

        return hear

    def _play(self, stage: Stage) -> None:
        start = self.world.timeline.now
        followers: dict[int, list[int]] = {}
        for number, dialogue in enumerate(stage.dialogues):
            if dialogue.after is not None:
                followers.setdefault(dialogue.after, []).append(number)

        def begin(number: int, since: float) -> None:
            dialogue = stage.dialogues[number]
            ended = _bound(follow, number)
            ask = _bound(self._ask, stage.label, dialogue, 0, ended)
            self.world.timeline.at(since + dialogue.start_s, ask)

        def follow(number: int) -> None:
            for follower in followers.get(number, ()):
                begin(follower, self.world.timeline.now)

        for number, dialogue in enumerate(stage.dialogues):
            if dialogue.after is None:
                begin(number, start)

    def _ask(self, label: str, dialogue: Dialogue, turn: int, ended: Callable[[], None]) -> None:
        ask, timeline = dialogue.turns[turn], self.world.timeline
        tokens, hashes = self._prompt(ask)
        served = Served(
            *(label, timeline.now, len(tokens), ask.output_tokens, dialogue.name),
            tenant=dialogue.tenant,
        )
        self._served.append(served)
        self.bounds.saw(hashes, len(tokens))

        def on_end(cached: Sequence[int]) -> None:
            self.bounds.saw(cached, 0)
            if turn + 1 < len(dialogue.turns):
                pause_s = dialogue.turns[turn + 1].think_s
                timeline.after(pause_s, _bound(self._ask, label, dialogue, turn + 1, ended))
            else:
                ended()

        router = self.world.routers[self._turn % len(self.world.routers)]
        self._turn += 1
        candidates = list(self.world.open)
        answer_id = self._answer_id(ask)
        request = Request(self.world, router, ask, tokens, hashes, answer_id, served, on_end)
        if (chosen := request.send()) is not None:
            self.oracle.compare(self.world.engines, candidates, chosen, hashes, tokens)

    def _prompt(self, ask: Ask) -> tuple[array[int], Hashes]:
        found = self._prompts.get(ask.segments)
        if found is None:
            tokens = tokens_of(ask.segments)
            found = tokens, hash_blocks(tokens, self.world.fleet.block_size)
            if len(self._prompts) >= REMEMBERED_PROMPTS:
                self._prompts.clear()
            self._prompts[ask.segments] = found
        return found

    def _answer_id(self, ask: Ask) -> int:
        if ask.answer_id:
            return ask.answer_id
        self._answers += 1
        return self._answers


def _bound(action: Callable[..., None], *values: object) -> Callable[[], None]:
    return lambda: action(*values)

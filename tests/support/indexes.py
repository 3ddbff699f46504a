"""Every implementation of `PrefixIndex`, and states of one that tests must not tell apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from router.blocks import BlockHash
from router.central import Desk, wire
from router.events.keeper import Keeper
from router.index import MemoryIndex, TieredIndex
from router.index.answers import Answer, Answers
from router.index.tiers import Loads
from tests.support.builders import NoSources
from tests.support.events import removed, stored


class Crowded(MemoryIndex):
    """Has segments that are split and merged again, because others hold thousands of blocks."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        tokens = list(range(10**6, 10**6 + 4 * 3000))
        self.store("crowd", stored(range(10**6, 10**6 + 3000), tokens))
        self.remove("crowd", removed(*range(10**6 + 50, 10**6 + 2000)))


class Tiered(TieredIndex):
    """Gives credit for two slower tiers, which `match` is not about."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(load_ms_per_ktoken={"CPU": 1.0, "STORAGE": 10.0}, **settings)


@dataclass(frozen=True)
class _AtTheDesk:
    """The index as the desk has it, behind what overrides `match`."""

    index: Central

    def match(self, prefix: Sequence[BlockHash]) -> dict[str, int]:
        return TieredIndex.match(self.index, prefix)

    def beyond(self, prefix: Sequence[BlockHash], matched: Mapping[str, int]) -> Loads:
        return self.index.beyond(prefix, matched)


class Central(Tiered):
    """Another process' index, as a router sees it: question and answer as they go over the wire."""

    def match(self, prefix: Sequence[BlockHash]) -> dict[str, int]:
        if not prefix:
            return {}
        desk = Desk(cast(TieredIndex, _AtTheDesk(self)), Keeper(self, NoSources()))
        number, asked = wire.read_ask(_body(wire.ask(7, [prefix])))
        answered, found = wire.read_answer(_body(desk.answer(number, asked)))
        assert (number, answered, len(found)) == (7, 7, 1)
        answers = Answers({prefix[-1]: Answer(found[0].matches, found[0].loads)})
        return dict(answers.match(prefix))


def _body(frame: bytes) -> bytes:
    ((_, body),) = wire.Splitter(wire.MAX_BYTES).feed(frame)
    return body


MAKERS: dict[str, type[MemoryIndex]] = {
    "memory": MemoryIndex,
    "crowded": Crowded,
    "tiered": Tiered,
    "central": Central,
}

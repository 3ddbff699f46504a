"""A follower of a scripted source, and what it has made of what it heard."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from router.blocks import Frame
from router.events import IngestCounters, Item, ReplicaTrust, Standing, Trust, follow
from router.index import MemoryIndex
from tests.support.events import ScriptedSource, prefix, prompt_frame, prompt_tokens


class Followed:
    """A follower of a scripted source, and what it has done."""

    make: type[MemoryIndex] = MemoryIndex

    def __init__(self, source: ScriptedSource) -> None:
        self.source = source
        self.index = self.make(clock=lambda: 0.0)
        self.told: list[str] = []
        self.trust = ReplicaTrust("a", on_change=lambda change: self.told.append(change.trust))
        self.counters = IngestCounters()
        self.standing = Standing()

    async def hears(self, *items: Item) -> None:
        self.source.say(*items)
        await self.source.drained()

    def holds(self, *numbers: int) -> bool:
        """Does the index hold exactly the prompts of these numbers?"""
        blocks = {block for number in numbers for block in prefix(prompt_tokens(number))}
        return self.index.blocks_of("a") == blocks

    @property
    def state(self) -> tuple[Trust, str]:
        return self.trust.trust, self.trust.reason


@asynccontextmanager
async def following(past: list[Frame] | None = None) -> AsyncIterator[Followed]:
    async with following_source(ScriptedSource(past)) as followed:
        yield followed


@asynccontextmanager
async def following_source(source: ScriptedSource) -> AsyncIterator[Followed]:
    followed = Followed(source)
    task = asyncio.create_task(
        follow(
            "a",
            source,
            followed.index,
            followed.trust,
            followed.counters,
            standing=followed.standing,
        )
    )
    try:
        yield followed
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


def frames(*seqs: int, life: int = 0) -> list[Frame]:
    return [prompt_frame(seq, life) for seq in seqs]

"""`warmgate check --live`: the self-test of every replica that the settings name."""

from __future__ import annotations

from collections.abc import AsyncIterator
from random import Random

import aiohttp
import zmq.asyncio

from router.config import to_replica
from router.events.sources import DialSources
from router.parity import Parity, Verdict
from router.runtime import Runtime
from router.settings import RouterConfig


async def check_live(config: RouterConfig) -> AsyncIterator[Verdict]:
    """One verdict per replica, in the settings' order."""
    sizes: set[int] = set()
    async with Runtime.open(config) as runtime, aiohttp.ClientSession() as session:
        context = zmq.asyncio.Context()
        try:
            sources = DialSources(context, session)
            parity = Parity(session, sources, runtime.tokens.first_choice, Random())
            for settings in config.replicas:
                size = next(iter(sizes)) if len(sizes) == 1 else None
                verdict = await parity.check(to_replica(settings), list(config.tokens.models), size)
                sizes |= {verdict.block_size} if verdict.block_size and not sizes else set()
                yield verdict
        finally:
            context.destroy(linger=0)


def in_words(verdict: Verdict) -> str:
    """A line, and one more for each mistake."""
    head = f"{verdict.replica_id}: {'ok' if verdict.is_good else 'WRONG'}"
    lines = [f"{head}, {verdict.facts}" if verdict.facts else head]
    return "\n".join([*lines, *(f"    {mistake}" for mistake in verdict.mistakes)]) + "\n"

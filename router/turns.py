"""One process of a host at a time places what takes long to compute.

Between looking at what the others have in flight and telling them of one's own choice lies half a
millisecond, and more where cores are busy. Of prompts that come to several processes at once each
would see none of the others, and each would be computed. So whoever is about to have much computed
takes a turn, looks again if somebody has begun something meanwhile, and tells of its choice before
the turn ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final

from router.index.siblings import NoSiblings, Siblings
from router.routing.choosing import Choice
from router.routing.cost import uncached_tokens

LOOK_S: Final = 0.001
PATIENCE: Final = 0.1
"""Nobody waits for longer than a tenth of what computing the prompt takes: a turn takes some
hundred microseconds, and if whoever has one is held up, waiting must not cost more than it
saves."""


@dataclass(slots=True)
class Turns:
    """`min_tokens`: a prompt of which fewer are to be computed needs no turn."""

    siblings: Siblings = field(default_factory=NoSiblings)
    min_tokens: int = 2**63
    clock: Callable[[], float] = lambda: 0.0

    @property
    def begun(self) -> int:
        """Changes with everything that is placed, here or elsewhere."""
        return self.siblings.begun

    def may_want(self, prompt_tokens: int) -> bool:
        """Could a prompt of this length want one?"""
        return prompt_tokens >= self.min_tokens

    def is_wanted(self, choice: Choice) -> bool:
        """Is much to be computed where it would go now?"""
        if not self.may_want(choice.query.prompt_tokens):
            return False
        first = choice.candidates[choice.decision.replicas[0]]
        return uncached_tokens(choice.query, first) >= self.min_tokens

    async def take(self, choice: Choice) -> AbstractContextManager[None]:
        """A turn; or none, if it is not to be had soon."""
        first = choice.candidates[choice.decision.replicas[0]]
        computing_ms = first.ttft.computing_ms(uncached_tokens(choice.query, first))
        gives_up_at = self.clock() + PATIENCE * computing_ms / 1e3
        while (turn := self.siblings.turn()) is None:
            if self.clock() >= gives_up_at:
                return nullcontext()
            await asyncio.sleep(LOOK_S)
        return turn

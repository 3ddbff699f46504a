"""How many tokens an engine computes in one step, as its first tokens show."""

from dataclasses import dataclass
from typing import Final

STEP_TOKENS: Final = 8192
"""What engines compute in one step, until they show that it is less (vLLM on large GPUs)."""
LEAST_TOKENS: Final = 512
"""No engine that is used for serving computes less in a step."""


@dataclass(slots=True)
class Steps:
    """Engines fill a prompt's last step with what waits behind it, up to a limit that they don't
    tell. Whoever fits and has its first token not together with that prompt's did not fit: the
    limit is below. Whoever has it together fits. Limits are powers of two, as they mostly are.

    By one power at a time: a prompt may have come to the engine later than was thought.
    """

    size: int = STEP_TOKENS

    def number(self, tokens: int) -> int:
        """Steps that so many tokens take."""
        return max(1, -(-tokens // self.size))

    def room(self, tokens: int) -> int:
        """What the last one of them has left."""
        return _room(tokens, self.size)

    def held_not(self, tokens: int, more: int) -> int:
        """The steps of so many tokens did not hold all of those behind: so many they did, then."""
        size = self.size
        while size > LEAST_TOKENS and _room(tokens, size) >= more:
            size //= 2
        if _room(tokens, size) >= more:
            return 0  # it was not there
        if size < self.size:
            self.size //= 2
        return _room(tokens, size)

    def held_more(self) -> None:
        """A step held what was thought not to fit."""
        self.size = min(2 * self.size, STEP_TOKENS)


def _room(tokens: int, size: int) -> int:
    return max(1, -(-tokens // size)) * size - tokens

"""A request at a simulated engine: the embedded engine's sequence, with callbacks."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from router.blocks import hash_blocks
from router.blocks.hashing import TYPE_CODE
from workers.engine.sequence import Chain, Ending, Finish, Identity
from workers.engine.sequence import Sequence as EngineSequence

NOBODY: Final = Identity()


class OneChain(Chain):
    """Engine hashes that are the router's own: hashed once for both."""

    def __init__(self, block_size: int, known: Sequence[int] = ()) -> None:
        self.engine = list(known)
        self.keys = self.engine
        self.size = block_size

    def extend(self, tokens: array[int]) -> None:
        done = len(self.engine)
        if len(tokens) // self.size > done:
            seed = self.engine[-1] if done else 0
            self.engine += hash_blocks(tokens[done * self.size :], self.size, seed)


@dataclass(slots=True, eq=False)
class Job(EngineSequence):
    """A request at an engine. The callbacks get nothing: time is the timeline's."""

    answer_id: int = 0
    block_size: int = 1
    on_first_token: Callable[[], None] = lambda: None
    on_end: Callable[[Finish], None] = lambda finish: None

    @property
    def left(self) -> int:
        """Answer tokens that are still to come."""
        return self.ending.max_tokens - self.answered

    def twin(self) -> Job:
        """The same progress; nobody is called back."""
        other = make_job(
            self.tokens,
            self.chain.engine,
            self.block_size,
            self.ending.max_tokens,
            self.answer_id,
        )
        other.prompt_len, other.computed = self.prompt_len, self.computed
        other.stored, other.hit_tokens = self.stored, self.hit_tokens
        other.preemptions, other.blocks = self.preemptions, self.blocks[:]
        return other

    def grow(self, tokens: int) -> None:
        """So many more tokens were sampled."""
        self.tokens.extend(array(TYPE_CODE, (self.answer_id,)) * tokens)
        self.chain.extend(self.tokens)


class _Mute:
    """The tokens of an answer are its id: nobody is asked for them, and nobody listens."""

    def next_token(self) -> int:
        return 0

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        return finish

    def aborted(self) -> None:
        pass


MUTE: Final = _Mute()


def make_job(
    prompt: array[int],
    prefix: Sequence[int],
    block_size: int,
    output_tokens: int,
    answer_id: int = 0,
) -> Job:
    """A request whose prompt's block hashes are known already."""
    return Job(
        tokens=prompt[:],
        chain=OneChain(block_size, prefix),
        identity=NOBODY,
        ending=Ending(max_tokens=max(output_tokens, 1)),
        answer=MUTE,
        listener=MUTE,
        answer_id=answer_id,
        block_size=block_size,
    )

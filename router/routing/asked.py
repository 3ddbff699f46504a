"""What is to be placed, and who could take it."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from router.blocks import BlockHash
from router.replicas import ReplicaId
from router.routing.query import Candidate

RING_BLOCKS: Final = 8
"""Without a session, consistent hashing is over a prompt's beginning up to so many blocks beyond
what is held already: prompts that share only what everybody has are not alike."""
MOSTLY: Final = 0.75
"""A prompt of which so much is held is one more of those that begin so."""
CALM: Final = 0.5
"""In a fleet that computes for less of its time fewer than one prompt waits where one is computed
(ρ / (1 - ρ) < 1): it can do with fewer copies."""


class Prefix(Struct, frozen=True):
    """A prompt cut into one replica's blocks. `block_size` is 0 while it isn't known."""

    hashes: Sequence[BlockHash] = ()
    block_size: int = 0

    @property
    def blocks(self) -> int:
        return len(self.hashes)


NO_PREFIX: Final = Prefix()


class Contender(Struct, frozen=True):
    """A replica that could serve, and the prompt in its blocks.

    `fleet`: who is like it. `distance_ms`: the way there and back.
    """

    replica_id: ReplicaId
    fleet: str
    prefix: Prefix = NO_PREFIX
    distance_ms: float = 0.0


class Ask(Struct, frozen=True, gc=False):
    """What is to be placed. `session`: what stickiness keeps together, if the client said.

    `start_key` stands for the prompt's beginning where no contender's blocks are known.
    """

    prompt_tokens: int
    session: str | None = None
    start_key: str = ""


def ring_key(ask: Ask, contenders: Sequence[Contender], candidates: Sequence[Candidate]) -> str:
    """What consistent hashing is over: who asks alike has the same home.

    Without a session that is a prompt's beginning, up to `RING_BLOCKS` beyond what is held. Where
    several hold most of it and the fleet is calm, what they hold decides alone: then the same few
    of them are asked as long as they are enough, and the others' copies make room.
    """
    if ask.session is not None:
        return ask.session
    prefix = contenders[0].prefix
    if not prefix.hashes:
        return ask.start_key
    held_tokens = max([candidate.hit_tokens for candidate in candidates])
    held = min(held_tokens // prefix.block_size, prefix.blocks)
    if held_tokens >= MOSTLY * ask.prompt_tokens and _is_copied(candidates, held_tokens):
        return f"{prefix.hashes[held - 1]:x}"
    return f"{prefix.hashes[min(held + RING_BLOCKS, prefix.blocks) - 1]:x}"


def _is_copied(candidates: Sequence[Candidate], held_tokens: int) -> bool:
    """Several hold so much, and the fleet is calm."""
    holders, busy = 0, 0.0
    for c in candidates:
        holders += c.hit_tokens == held_tokens
        busy += c.busy
    return held_tokens > 0 and holders > 1 and busy < CALM * len(candidates)

"""One prompt and the answer that grows behind it: tokens, block hashes, blocks, progress."""

from array import array
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from xxhash import xxh3_64_intdigest

from router.blocks import hash_blocks, prefix_seed
from workers.engine.pool import BlockId


class Finish(StrEnum):
    """Why a sequence ended, in the API's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Answer(Protocol):
    """Where the next token comes from."""

    def next_token(self) -> int:
        """The token that a model would have sampled."""


class Listener(Protocol):
    """Who wants the tokens. Called from the engine's loop: must not wait."""

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        """A token was sampled. Returns why the sequence ends here, if it does (a stop string)."""

    def aborted(self) -> None:
        """The engine gave the sequence up."""


@dataclass(frozen=True, slots=True)
class Adapter:
    """A LoRA adapter: its public name and the engine's local number (from 1)."""

    name: str
    number: int


@dataclass(frozen=True, slots=True)
class Identity:
    """What keeps a sequence's blocks apart from others with the same tokens."""

    salt: str | None = None
    adapter: Adapter | None = None
    session: str | None = None

    @property
    def adapter_name(self) -> str | None:
        return self.adapter.name if self.adapter else None

    def extra_keys(self, first: int, count: int) -> list[list[str] | None]:
        """vLLM's `extra_keys` of `count` blocks from number `first` on: adapter, then salt."""
        usual = [self.adapter.name] if self.adapter else []
        keys = [usual or None for _ in range(count)]
        if first == 0 and self.salt is not None:
            keys[0] = [*usual, self.salt]
        return keys


class Chain:
    """The hashes of a sequence's full blocks, in step with its tokens.

    `engine`: what events carry. It is seeded with a number that nobody outside knows, as vLLM's
    may be, so nothing can rely on its values. `keys`: the router's own hashes, for `/cache`.
    """

    def __init__(self, block_size: int, root: int, identity: Identity) -> None:
        self.engine: list[int] = []
        self.keys: list[int] = []
        self._block_size = block_size
        seed = prefix_seed(identity.salt, identity.adapter_name)
        self._key_seed = seed
        self._engine_seed = xxh3_64_intdigest(seed.to_bytes(8, "big"), root)

    def extend(self, tokens: "array[int]") -> None:
        """Hash the blocks that have become full. `tokens`: the whole sequence."""
        done = len(self.engine)
        if len(tokens) // self._block_size == done:
            return
        fresh = tokens[done * self._block_size :]
        self.engine += hash_blocks(
            fresh, self._block_size, self.engine[-1] if done else self._engine_seed
        )
        self.keys += hash_blocks(fresh, self._block_size, self.keys[-1] if done else self._key_seed)


@dataclass(frozen=True, slots=True)
class Ending:
    """When a sequence ends. Stop strings are the listener's business: it has the text."""

    max_tokens: int
    min_tokens: int = 0
    stop_tokens: frozenset[int] = frozenset()

    def reason(self, token: int, answered: int) -> Finish | None:
        """`answered`: tokens so far, this one included."""
        if answered >= self.min_tokens and token in self.stop_tokens:
            return Finish.STOP
        return Finish.LENGTH if answered >= self.max_tokens else None


@dataclass(slots=True)
class Moments:
    """When things happened to a sequence, on the engine's clock, in seconds."""

    arrived: float = 0.0
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


@dataclass(slots=True, eq=False)
class Sequence:
    """A request's one answer. `tokens` is the prompt, then what was sampled."""

    tokens: "array[int]"
    chain: Chain
    identity: Identity
    ending: Ending
    answer: Answer
    listener: Listener
    prompt_len: int = field(init=False)
    computed: int = 0
    """Leading tokens whose keys and values are in the cache."""
    stored: int = 0
    """Leading blocks that are cached: hits, then those computed and stored."""
    hit_tokens: int = 0
    """Prompt tokens that were not computed, thanks to the cache (at first admission)."""
    preemptions: int = 0
    blocks: list[BlockId] = field(default_factory=list)
    finish: Finish | None = None
    moments: Moments = field(default_factory=Moments)

    def __post_init__(self) -> None:
        self.prompt_len = len(self.tokens)
        self.chain.extend(self.tokens)

    @property
    def answered(self) -> int:
        """Tokens sampled so far."""
        return len(self.tokens) - self.prompt_len

    @property
    def uncomputed(self) -> int:
        """Tokens that the model has yet to read; at least 1 before each sample."""
        return len(self.tokens) - self.computed

    def sample(self) -> int:
        """Append the next token of the answer."""
        token = self.answer.next_token()
        self.tokens.append(token)
        self.chain.extend(self.tokens)
        return token

    def forget_progress(self) -> Seq[BlockId]:
        """Give up all blocks (preemption): everything must be matched or computed again."""
        blocks, self.blocks = self.blocks, []
        self.computed = self.stored = 0
        self.preemptions += 1
        return blocks

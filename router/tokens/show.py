"""Any request as tokens, blocks, hashes and the memo's pieces: what `warmgate tokens` prints."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from router.blocks import hash_blocks, prefix_seed
from router.blocks.hashing import BYTES_PER_TOKEN
from router.errors import InvalidRequest
from router.openai.generation import Generation, parse_generation
from router.tokens.assembly import ModelSource
from router.tokens.limits import Limits
from router.tokens.local import LocalTokenizer
from router.tokens.model_dir import UnusableModelDir
from router.tokens.protocol import TokenizeFailed
from router.tokens.template import BadTemplate

SHOWN_CHARS: Final = 60
PATIENT: Final = Limits(deadline_s=60.0, inline_s=10.0)


class NotShown(Exception):
    """The request has no tokens here; the message says why."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A stretch of the prompt that the memo knows as one: `tokens` ids from `start` on."""

    start: int
    tokens: int
    text: str
    is_remembered: bool


@dataclass(frozen=True, slots=True)
class Shown:
    """A prompt taken apart. `prefix`: hashes of its full blocks, as the index keys them."""

    tokens: bytes
    pieces: tuple[Piece, ...]
    prefix: tuple[int, ...]
    block_size: int

    def lines(self, spell: LocalTokenizer) -> Iterator[str]:
        """For people: pieces, then a line per block, then what is left over."""
        count = len(self.tokens) // BYTES_PER_TOKEN
        yield f"{count} tokens, {len(self.prefix)} full blocks of {self.block_size}"
        yield "pieces (first token, tokens, text):"
        for piece in self.pieces:
            mark = "remembered" if piece.is_remembered else "new"
            yield f"  {piece.start:7} {piece.tokens:6}  {mark:10} {_shortened(piece.text)}"
        yield "blocks (hash, first token, ids):"
        ids = memoryview(self.tokens).cast("I")
        for number, digest in enumerate(self.prefix):
            at = number * self.block_size
            inside = ids[at : at + self.block_size].tolist()
            text = "".join(spell.encoder.token_text(token) or "?" for token in inside)
            yield f"  {digest:016x} {at:7}  {' '.join(map(str, inside))}  {_shortened(text)}"
        rest = ids[len(self.prefix) * self.block_size :].tolist()
        yield f"no block yet: {' '.join(map(str, rest)) or 'nothing'}"


def show(
    sources: Mapping[str | None, ModelSource],
    path: str,
    bodies: Sequence[bytes],
    block_size: int,
    adapter: str | None = None,
) -> Iterator[str]:
    """The lines for the last of `bodies`; those before it are remembered first. NotShown."""
    try:
        generations = [parse_generation(path, {}, body) for body in bodies]
        model = generations[-1].model
        source = sources.get(model, sources.get(None))
        if source is None:
            raise NotShown(f"no tokenizer for {model!r}; give one with --tokenizer DIR")
        local = LocalTokenizer.load(source.directory, limits=PATIENT, flags=source.flags)
        for generation in generations[:-1]:
            asyncio.run(local.tokenize(generation))
        last = take_apart(local, generations[-1], block_size=block_size, adapter=adapter)
        return asyncio.run(last).lines(local)
    except TokenizeFailed as exc:
        raise NotShown(f"no tokens: {exc.reason}") from exc
    except (InvalidRequest, UnusableModelDir, BadTemplate) as exc:
        raise NotShown(str(exc)) from exc


async def take_apart(
    tokenizer: LocalTokenizer, generation: Generation, *, block_size: int, adapter: str | None
) -> Shown:
    """Tokenize and hash like the router. Raises TokenizeFailed."""
    pieces = tokenizer.pieces_of(generation)
    known = tokenizer.encoder.recall(pieces)
    tokens = await tokenizer.tokenize(generation)
    seed = prefix_seed(generation.salt, adapter)
    return Shown(
        tokens=tokens,
        pieces=tuple(_pieces(tokenizer, pieces, known)),
        prefix=tuple(hash_blocks(tokens, block_size, seed)),
        block_size=block_size,
    )


def _pieces(
    tokenizer: LocalTokenizer, texts: list[str], known: list[bytes | None]
) -> Iterator[Piece]:
    encoded = tokenizer.encoder.encode_pieces(set(texts))
    start = 0
    for text, ids in zip(texts, known, strict=True):
        count = len(encoded[text]) // BYTES_PER_TOKEN
        yield Piece(start, count, text, ids is not None)
        start += count


def _shortened(text: str) -> str:
    shown = repr(text)
    if len(shown) <= SHOWN_CHARS:
        return shown
    half = SHOWN_CHARS // 2
    return f"{shown[:half]} … {shown[-half:]}"

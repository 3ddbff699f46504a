"""CPU that a plan costs: `python -m tests.bench.tokenizing [MODEL_DIR...]`.

From the body's bytes to the decision: parse, tokenize, hash, match and rank among four replicas
that hold the conversation. CPU of all threads (not wall time), the least of a few runs, in ms:
cold (no memo), beside what the tokenizer's library alone takes for the same text; warm (the same
body again); next turn (two new messages). Then conversations that grow to each size in 50 turns:
what a turn cost that brought its new text, and the same body again. Nothing is asserted.

Without a directory: the embedded engine's own small tokenizer. Families that are laid out by code
(gpt-oss, Mistral) have directories too; their *library* encodes the same pieces one by one.
"""

import asyncio
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from router.blocks import BlockStored
from router.index.reservations import Reservations
from router.index.tiers import TieredIndex
from router.openai.generation import parse_generation
from router.planner import Planner
from router.replicas import Pool
from router.routing import POLICIES, Chooser, Speeds
from router.source import OwnIndex
from router.tokens import Limits, LocalTokenizer
from router.tokens.encoder import LITERAL, Encoder, encode_in_the_calling_thread
from router.tokens.memo import Memo
from router.tokens.tekken import TekkenEncoder
from tests.support.builders import model_rows, replica

EMBEDDED = Path(__file__).parents[2] / "workers" / "engine" / "model"
PATIENT = Limits(deadline_s=60.0, inline_s=10.0, render_s=10.0)
SIZES = (1_000, 8_000, 32_000, 100_000)
REPLICAS = ("r1", "r2", "r3", "r4")
TURNS = 50
RUNS = 5
GROWN_RUNS = 3
COLUMNS = ("tokens", "messages", "cold", "library", "warm", "next turn")
RESULT = Path("build/bench-tokens.json")
BLOCK = 16
WORDS = (
    "the of and to a in that it is was for on with as be at by this had not are but from or have"
    " an they which one you were all her she there would their we him been has when who will no"
    " more if out so up said what its about than into them can only other time new some could"
    " these two may first then do any like my now over such our man me even most made after also"
    " did many off before must well back through years where much your way down should because"
).split()

Messages = list[dict[str, str]]


def main() -> None:
    encode_in_the_calling_thread()  # as `serve` does
    figures: dict[str, dict[str, Any]] = {}
    directories = [Path(name) for name in sys.argv[1:]] or [EMBEDDED]
    for directory in directories:
        print(f"{directory}  (CPU, least of {RUNS} runs, ms)")
        print("".join(f"{name:>12}" for name in COLUMNS))
        rows, bench = [], Bench(directory)
        for size in SIZES:
            rows.append(asyncio.run(measure(bench, size)))
            print("".join(f"{rows[-1][name]:>12g}" for name in COLUMNS))
        grown = [asyncio.run(grow(bench, size)) for size in SIZES]
        for growth in grown:
            shown = ", ".join(f"{turn}: {ms}" for turn, ms in growth["ms_by_turn"].items())
            print(f"{TURNS} turns to {growth['tokens']} tokens, ms by turn, and of the same again: "
                  f"{shown}; memo {growth['memo_bytes'] / 1e6:.2f} MB")  # fmt: skip
        figures[directory.name] = {"plans": rows, "growing": grown}
    RESULT.parent.mkdir(exist_ok=True)
    RESULT.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


class Bench:
    """One planner over four replicas, the first of which holds what was planned before."""

    def __init__(self, directory: Path) -> None:
        self.tokenizer = LocalTokenizer.load(directory, limits=PATIENT)
        self._encode = self._library(directory / "tokenizer.json")
        pool = Pool(time.monotonic)
        pool.reconcile([replica(name) for name in REPLICAS])
        for name in REPLICAS:
            pool.mark_up(name, model_rows("m"))
        self.index = TieredIndex(clock=time.monotonic)
        self.planner = Planner(
            pool=pool,
            tokenizer=self.tokenizer,
            source=OwnIndex(self.index),
            chooser=Chooser(
                self.index,
                Reservations(time.monotonic),
                Speeds(),
                POLICIES["cache-aware"](random.Random(0)),
                time.monotonic,
            ),
        )
        self._hashes = 0

    async def hold(self, raw: bytes) -> int:
        """Tell the index that all replicas hold this prompt. Returns its tokens."""
        tokens = await self.tokenizer.tokenize(parse_generation("/v1/chat/completions", {}, raw))
        ids = memoryview(tokens).cast("I").tolist()
        for name in REPLICAS:
            hashes = tuple(range(self._hashes, self._hashes + len(ids) // BLOCK))
            self._hashes += len(hashes)
            self.index.store(name, BlockStored(hashes, None, ids, BLOCK))
        return len(ids)

    async def plan(self, raw: bytes) -> float:
        """CPU of one plan, in ms, of all threads."""
        started = time.process_time()
        with await self.planner.plan(parse_generation("/v1/chat/completions", {}, raw)):
            return (time.process_time() - started) * 1e3

    def library(self, raw: bytes) -> float:
        """What the library alone takes for the rendered text, in ms."""
        pieces = self.tokenizer.pieces_of(parse_generation("/v1/chat/completions", {}, raw))
        started = time.process_time()
        self._encode(pieces)
        return (time.process_time() - started) * 1e3

    def _library(self, file: Path) -> Callable[[list[str]], object]:
        if not file.is_file():
            return TekkenEncoder(file.with_name("tekken.json"), Memo(0)).encode_pieces
        if any(map(is_literal, self.tokenizer.pieces_of(SHORT))):
            plain = Encoder(Tokenizer.from_file(str(file)), Memo(0))  # no memo of words
            plain.learn_literals()
            return plain.encode_pieces
        tokenizer = Tokenizer.from_file(str(file))
        return lambda pieces: (
            tokenizer.encode_batch_fast(["".join(pieces)], add_special_tokens=False)[0].ids
        )


async def measure(bench: Bench, size: int) -> dict[str, float]:
    """Each run's text is new to all memos; the same words are known to the library before."""
    cold, library, warm, grown, tokens = [], [], [], [], 0
    messages: Messages = []
    # the first use of a process is slower: a thread starts, the library fills its own caches
    before = body(conversation(random.Random(size), 1_500))
    bench.library(before)
    await bench.plan(before)
    for run in range(RUNS):
        messages = conversation(random.Random(size + run + 1), size)
        more = [say("assistant", random.Random(run), 150), say("user", random.Random(-run), 50)]
        library.append(bench.library(body(messages)))
        cold.append(await bench.plan(body(messages)))
        tokens = await bench.hold(body(messages))
        await bench.plan(body(messages))
        warm.append(await bench.plan(body(messages)))
        grown.append(await bench.plan(body(messages + more)))
    least = [round(min(times), 3) for times in (cold, library, warm, grown)]
    return dict(zip(COLUMNS, (tokens, len(messages), *least), strict=True))


async def grow(bench: Bench, size: int) -> dict[str, Any]:
    """A few conversations, each in texts of its own; the least that a turn took in any of them."""
    costs: list[tuple[float, float]] = [(math.inf, math.inf)] * TURNS
    tokens, words = 0, max(1, size // TURNS // 2)
    before = bench.tokenizer.memo_bytes
    for run in range(GROWN_RUNS):
        messages = conversation(random.Random(size + run), 0)
        for turn in range(TURNS):
            seed = size + TURNS * run + turn
            messages = [*messages, say("user", random.Random(seed), words)]
            first = await bench.plan(body(messages))
            again = await bench.plan(body(messages))
            costs[turn] = min(costs[turn][0], first), min(costs[turn][1], again)
            tokens = await bench.hold(body(messages))
            messages.append(say("assistant", random.Random(-seed), words))
    kept = (bench.tokenizer.memo_bytes - before) // GROWN_RUNS
    by_turn = {
        turn: " / ".join(f"{cost:.2f}" for cost in costs[turn - 1]) for turn in (1, 10, 25, TURNS)
    }
    return {"tokens": tokens, "ms_by_turn": by_turn, "memo_bytes": kept}


def conversation(rng: random.Random, words: int) -> Messages:
    """A system prompt, then turns of 200 words; longer ones in a longer conversation. The last turn
    is a user's, as in what is sent to engines: Mistral's refuse others."""
    length = max(200, words // (2 * TURNS))
    roles = ("user", "assistant")
    turns = (say(roles[number % 2], rng, length) for number in range(words // length // 2 * 2 + 1))
    return [say("system", rng, 150), *(turns if words else ())]


def say(role: str, rng: random.Random, words: int) -> dict[str, str]:
    return {"role": role, "content": " ".join(sentences(rng, words))}


def sentences(rng: random.Random, words: int) -> Iterator[str]:
    for number in range(words):
        word = rng.choice(WORDS)
        yield word.capitalize() + "." if number % 12 == 11 else word


def is_literal(piece: str) -> bool:
    """Whether a piece is text in which nothing is special; the library has no one text for it."""
    return piece.startswith(LITERAL)


def body(messages: Messages) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


SHORT = parse_generation("/v1/chat/completions", {}, body([{"role": "user", "content": "Hi"}]))


if __name__ == "__main__":
    main()

"""Cost of tokenizing on this machine: `python -m tests.bench.tokenizing [MODEL_DIR...]`.

Prints the best wall time of a few runs, from the body's bytes to the ids, for growing
conversations: cold (no memo), warm (the same body again), next turn (two new messages). Nothing
is asserted. Without a directory: the embedded engine's own small tokenizer.
"""

import asyncio
import json
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from router.openai.generation import parse_generation
from router.tokens import LocalTokenizer

EMBEDDED = Path(__file__).parents[2] / "workers" / "engine" / "model"
SIZES = (1_000, 8_000, 32_000)
RUNS = 7
WORDS = (
    "the of and to a in that it is was for on with as be at by this had not are but from or have"
    " an they which one you were all her she there would their we him been has when who will no"
    " more if out so up said what its about than into them can only other time new some could"
    " these two may first then do any like my now over such our man me even most made after also"
    " did many off before must well back through years where much your way down should because"
).split()


def main() -> None:
    directories = [Path(name) for name in sys.argv[1:]] or [EMBEDDED]
    for directory in directories:
        print(f"{directory}  (best of {RUNS} runs, ms)")
        print(f"{'tokens':>8}{'messages':>10}{'cold':>9}{'warm':>9}{'next turn':>11}")
        for size in SIZES:
            print(asyncio.run(measure(directory, size)))


async def measure(directory: Path, size: int) -> str:
    tokenizer = LocalTokenizer.load(directory)
    await timed(tokenizer, body(conversation(random.Random(0), 200)))  # first use is slower
    cold: list[float] = []
    warm: list[float] = []
    grown: list[float] = []
    tokens, messages = 0, conversation(random.Random(0), size)
    for run in range(RUNS):
        messages = conversation(random.Random(run + 1), size)
        more = [say("assistant", random.Random(run), 150), say("user", random.Random(-run), 50)]
        for times, asked in ((cold, messages), (warm, messages), (grown, messages + more)):
            elapsed_ms, tokens = await timed(tokenizer, body(asked))
            times.append(elapsed_ms)
    figures = f"{min(cold):9.2f}{min(warm):9.2f}{min(grown):11.2f}"
    return f"{tokens:8}{len(messages):10}{figures}"


async def timed(tokenizer: LocalTokenizer, raw: bytes) -> tuple[float, int]:
    started = time.perf_counter()
    ids = await tokenizer.tokenize(parse_generation("/v1/chat/completions", {}, raw))
    return (time.perf_counter() - started) * 1e3, len(ids) // 4


def conversation(rng: random.Random, words: int) -> list[dict[str, str]]:
    """A system prompt, then turns of 200 words."""
    roles = ("user", "assistant")
    turns = (say(roles[number % 2], rng, 200) for number in range(max(1, words // 250)))
    return [say("system", rng, 150), *turns]


def say(role: str, rng: random.Random, words: int) -> dict[str, str]:
    return {"role": role, "content": " ".join(sentences(rng, words))}


def sentences(rng: random.Random, words: int) -> Iterator[str]:
    for number in range(words):
        word = rng.choice(WORDS)
        yield word.capitalize() + "." if number % 12 == 11 else word


def body(messages: list[dict[str, str]]) -> bytes:
    return json.dumps({"model": "m", "messages": messages, "stream": True}).encode()


if __name__ == "__main__":
    main()

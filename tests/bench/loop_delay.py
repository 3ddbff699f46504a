"""What cold prompts of 100,000 tokens cost others: `python -m tests.bench.loop_delay [MODEL_DIR]`.

Twice a second such a prompt, never seen before, is tokenized; meanwhile a short request is
tokenized every 2 ms. Prints the quantiles of how late the event loop ran (what every other request
sees), and the short requests' own times; the same without the long prompts, in turns over three
rounds, because the machine alone makes a loop late. Nothing is asserted.
"""

import asyncio
import gc
import random
import sys
import time
from pathlib import Path

import uvloop

from router.openai.generation import parse_generation
from router.serve import GARBAGE_EVERY, SWITCH_S
from router.tokens import Limits, LocalTokenizer, TokenizeFailed
from router.tokens.encoder import encode_in_the_calling_thread
from tests.bench.tokenizing import EMBEDDED, body, conversation, say

SECONDS = 6.0
ROUNDS = 3
EVERY_S = 0.002
LONG_EVERY_S = 0.5
LONG_WORDS = 90_000


def main() -> None:
    directory = Path(sys.argv[1]) if sys.argv[1:] else EMBEDDED
    sys.setswitchinterval(SWITCH_S)  # as `serve` does
    gc.set_threshold(*GARBAGE_EVERY)
    print(f"{directory}, {SECONDS:.0f} s each; ms       p50     p99   p99.9     max")
    encode_in_the_calling_thread()
    prompts = int(SECONDS / LONG_EVERY_S)
    long = [body(conversation(random.Random(seed), LONG_WORDS)) for seed in range(prompts)]
    one = [body([say("user", random.Random(seed), LONG_WORDS)]) for seed in range(prompts)]
    kinds: dict[str, list[bytes]] = {"nothing else": [], "102 messages": long, "one message": one}
    late: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, bodies in kinds.items():
            found, short, done = uvloop.run(measure(directory, bodies))
            late[name] += found
            print(f"{name:14} loop late by   {quantiles(found)}   ({done} long prompts)")
            print(f"{name:14} short request  {quantiles(short)}")
    for name, found in late.items():
        print(f"{name:14} all rounds     {quantiles(found)}")


async def measure(directory: Path, bodies: list[bytes]) -> tuple[list[float], list[float], int]:
    tokenizer = LocalTokenizer.load(directory, limits=Limits(deadline_s=5.0))
    gc.freeze()  # as `serve` does: a look at all objects of a process would show once a run
    late: list[float] = []
    short: list[float] = []
    until = time.perf_counter() + SECONDS
    flood = asyncio.create_task(cold(tokenizer, bodies))
    number = 0
    while (now := time.perf_counter()) < until:
        await asyncio.sleep(EVERY_S)
        late.append((time.perf_counter() - now - EVERY_S) * 1e3)
        started, number = time.perf_counter(), number + 1
        raw = body([{"role": "user", "content": f"request {number}"}])
        await tokenizer.tokenize(parse_generation("/v1/chat/completions", {}, raw))
        short.append((time.perf_counter() - started) * 1e3)
    flood.cancel()
    await asyncio.gather(flood, return_exceptions=True)
    return late, short, len(bodies)


async def cold(tokenizer: LocalTokenizer, bodies: list[bytes]) -> None:
    async with asyncio.TaskGroup() as group:
        for raw in bodies:
            group.create_task(attempt(tokenizer, raw))
            await asyncio.sleep(LONG_EVERY_S)


async def attempt(tokenizer: LocalTokenizer, raw: bytes) -> None:
    try:
        await tokenizer.tokenize(parse_generation("/v1/chat/completions", {}, raw))
    except TokenizeFailed as exc:
        print("  failed:", exc.reason)


def quantiles(values: list[float]) -> str:
    ordered = sorted(values)
    shown = (ordered[int(len(ordered) * q)] for q in (0.5, 0.99, 0.999))
    return "".join(f"{value:8.2f}" for value in (*shown, ordered[-1]))


if __name__ == "__main__":
    main()

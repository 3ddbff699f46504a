"""Where a warm chat's tokenizing goes: `python -m tests.bench.rendering [MODEL_DIR...]`.

Wall time of one thread, least of many runs, in µs, for a 2 KB chat and for 501 short messages: body
to prompt (*read*), with template and cuts (*pieces*), the pieces' ids from the memo (*recall*),
and all of it (*all*). Nothing is asserted. Without a directory: the embedded engine's tokenizer.
"""

import asyncio
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

from router.openai.generation import Generation, parse_generation
from router.tokens import Limits, LocalTokenizer
from router.tokens.prompt import read_prompt
from tests.bench.tokenizing import EMBEDDED

INLINE = Limits(deadline_s=60.0, inline_bytes=1 << 22, inline_s=10.0)
SHAPES = {"2 KB": (5, 45), "501 messages": (501, 8)}
"""Name → messages after the system prompt, and how often each repeats its words."""


def main() -> None:
    for directory in [Path(name) for name in sys.argv[1:]] or [EMBEDDED]:
        tokenizer = LocalTokenizer.load(directory, limits=INLINE)
        for name, (turns, repeats) in SHAPES.items():
            steps = asyncio.run(measure(tokenizer, chat(turns, repeats), 6000 // turns))
            shown = "".join(f"{step:>10} {took:7.1f}" for step, took in steps.items())
            print(f"{directory.name:<12}{name:<14}{shown}")


async def measure(tokenizer: LocalTokenizer, asked: Generation, runs: int) -> dict[str, float]:
    await tokenizer.tokenize(asked)
    pieces = tokenizer.pieces_of(asked)
    whole = []
    for _ in range(runs):
        started = time.perf_counter()
        await tokenizer.tokenize(asked)
        whole.append(time.perf_counter() - started)
    return {
        "read": least(lambda: read_prompt(asked, 1 << 22), runs),
        "pieces": least(lambda: tokenizer.pieces_of(asked), runs),
        "recall": least(lambda: tokenizer.encoder.recall(pieces), runs),
        "all": min(whole) * 1e6,
    }


def least(work: Callable[[], object], runs: int) -> float:
    times = []
    for _ in range(runs):
        started = time.perf_counter()
        work()
        times.append(time.perf_counter() - started)
    return min(times) * 1e6


def chat(turns: int, repeats: int) -> Generation:
    roles = ("user", "assistant")
    messages = [{"role": "system", "content": "You are brief. " * 10}]
    messages += [
        {"role": roles[turn % 2], "content": f"word {turn} " * repeats} for turn in range(turns)
    ]
    body = json.dumps({"model": "m", "messages": messages}).encode()
    return parse_generation("/v1/chat/completions", {}, body)


if __name__ == "__main__":
    main()

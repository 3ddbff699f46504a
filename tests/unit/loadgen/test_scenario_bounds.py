"""The shipped scenarios are what they say: their bounds are those that were published or computed
elsewhere for the same parameters (one unlimited cache; prompts' blocks only, a token per word)."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from functools import cache

import pytest

from loadgen.cli import make_parser
from loadgen.recipes import workload_maker
from loadgen.scenario import expand, shipped
from loadgen.text import Prose
from loadgen.workload.protocol import Session, Workload
from router.blocks.hashing import as_tokens, hash_blocks

WANTED = {
    "llmd-73": 0.985,
    "llmd-37": 0.985,
    "sglang-gsp": 0.882,
    "smg-600": 0.533,
    "redhat-multiturn": 0.868,
    "multiturn-4": 0.868,
    "multi-round-qa": 0.839,
    "tenant-fixed": 0.921,
    "tenant-timestamp": 0.016,
    "sglang-21199": 0.254,
    "unique": 0.0,
}
WITHIN = 0.02

# computing alone, up to a few seconds of it: on a busy machine that is a minute
pytestmark = pytest.mark.timeout(300)


def workload(name: str) -> tuple[Workload, int]:
    words = expand(["run", "--url", "http://h", "--model", "m", "--scenario", name])
    args = make_parser().parse_args(words)
    return workload_maker(args)(RememberedProse(), ""), args.block_size


def prompts(session: Session) -> Iterator[tuple[float, tuple[str, ...]]]:
    """(when, texts) of each turn; an answer is as many words as it may be."""
    history: list[str] = []
    at = session.start_s
    for number, turn in enumerate(session.turns):
        at += turn.think_s if number else 0.0
        history += [message.content for message in turn.messages]
        yield at, tuple(history)
        if turn is not session.turns[-1]:  # nobody reads the last answer
            history.append(" ".join(f"{session.id}-{number}-{n}" for n in range(turn.max_tokens)))


class RememberedProse(Prose):
    """Writes each passage once: prompts of a group have thousands of words in common."""

    def __init__(self) -> None:
        super().__init__(1)
        self.passage = cache(super().passage)  # type: ignore[method-assign]


class Cache:
    """Unlimited; full blocks, and at least one token of every prompt is computed."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.ids: dict[str, int] = {}
        self.known: dict[tuple[str, ...], tuple[array[int], list[int]]] = {(): (as_tokens([]), [])}
        self.cached: set[int] = set()
        self.hit = self.whole = 0

    def ask(self, texts: tuple[str, ...]) -> None:
        tokens, prefix = self.prompt(texts)
        usable = prefix[: (len(tokens) - 1) // self.block_size]
        found = next((n for n, one in enumerate(usable) if one not in self.cached), len(usable))
        self.hit += found * self.block_size
        self.whole += len(tokens)
        self.cached.update(prefix[found:])

    def prompt(self, texts: tuple[str, ...]) -> tuple[array[int], list[int]]:
        """Tokens and hashes, from those of the longest beginning that was asked for."""
        if (known := self.known.get(texts)) is not None:
            return known
        start = next(n for n in range(len(texts) - 1, -1, -1) if texts[:n] in self.known)
        before, hashes = self.known[texts[:start]]
        ids = self.ids
        words = " ".join(texts[start:]).split()
        tokens = before + as_tokens([ids.setdefault(word, len(ids)) for word in words])
        done = len(hashes) * self.block_size
        more = hash_blocks(tokens[done:], self.block_size, hashes[-1] if hashes else 0)
        self.known[texts] = tokens, [*hashes, *more]
        return self.known[texts]


@pytest.mark.parametrize("name", WANTED)
def test_scenario_has_its_published_bound(name):
    made, block_size = workload(name)
    unlimited = Cache(block_size)
    asked = sorted(
        (one for session in made.sessions() for one in prompts(session)), key=lambda one: one[0]
    )
    for _, texts in asked:
        unlimited.ask(texts)
    assert unlimited.hit / unlimited.whole == pytest.approx(WANTED[name], abs=WITHIN)


def test_every_scenario_says_what_it_is_and_can_be_run():
    for name, text in shipped().items():
        assert len(text) > 10
        if name != "mooncake":
            assert workload(name)[0].requests > 0

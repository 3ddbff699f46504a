"""The shipped scenarios are what they say: their bounds are those that were published or computed
elsewhere for the same parameters (one unlimited cache; prompts' blocks only, a token per word)."""

from collections.abc import Iterator

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


def workload(name: str) -> tuple[Workload, int]:
    words = expand(["run", "--url", "http://h", "--model", "m", "--scenario", name])
    args = make_parser().parse_args(words)
    return workload_maker(args)(Prose(1), ""), args.block_size


def prompts(session: Session) -> Iterator[tuple[float, tuple[str, ...]]]:
    """(when, texts) of each turn; an answer is as many words as it may be."""
    history: list[str] = []
    at = session.start_s
    for number, turn in enumerate(session.turns):
        at += turn.think_s if number else 0.0
        history += [message.content for message in turn.messages]
        yield at, tuple(history)
        history.append(" ".join(f"{session.id}-{number}-{n}" for n in range(turn.max_tokens)))


class Cache:
    """Unlimited; full blocks, and at least one token of every prompt is computed."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.ids: dict[str, int] = {}
        self.known: dict[tuple[str, ...], tuple[list[int], int]] = {}
        self.cached: set[int] = set()
        self.hit = self.whole = 0

    def ask(self, texts: tuple[str, ...]) -> None:
        if texts not in self.known:
            ids = self.ids
            tokens = [ids.setdefault(word, len(ids)) for text in texts for word in text.split()]
            prefix = hash_blocks(as_tokens(tokens), self.block_size)
            self.known[texts] = list(prefix), len(tokens)
        prefix, length = self.known[texts]
        usable = prefix[: (length - 1) // self.block_size]
        found = next((n for n, one in enumerate(usable) if one not in self.cached), len(usable))
        self.hit += found * self.block_size
        self.whole += length
        self.cached.update(prefix[found:])


@pytest.mark.parametrize("name", WANTED)
def test_scenario_has_its_published_bound(name):
    made, block_size = workload(name)
    cache = Cache(block_size)
    asked = sorted(
        (one for session in made.sessions() for one in prompts(session)), key=lambda one: one[0]
    )
    for _, texts in asked:
        cache.ask(texts)
    assert cache.hit / cache.whole == pytest.approx(WANTED[name], abs=WITHIN)


def test_every_scenario_says_what_it_is_and_can_be_run():
    for name, text in shipped().items():
        assert len(text) > 10
        if name != "mooncake":
            assert workload(name)[0].requests > 0

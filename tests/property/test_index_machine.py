"""The index against a model plain enough to be believed: copies counted, prompts walked."""

from collections import Counter, defaultdict

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from router.index import MemoryIndex
from tests.support.events import BLOCK_SIZE, prefix, removed, stored
from tests.support.indexes import MAKERS

REPLICAS = st.sampled_from(["a", "b", "c"])
SALTS = st.sampled_from([None, "x"])
# Few and short prompts of few kinds of block, so that they overlap.
PROMPTS = st.lists(st.sampled_from([0, 1]), min_size=1, max_size=4).map(tuple)
Prompt = tuple[int, ...]
Block = tuple[str | None, Prompt]
"""A block as the model knows it: its salt, and all of its prompt up to its end."""


def tokens_of(prompt: Prompt) -> list[int]:
    return [kind for kind in prompt for _ in range(BLOCK_SIZE)]


def handle_of(block: Block) -> int:
    """A pretended engine's hash of it."""
    return hash(("engine", block))


class IndexMachine(RuleBasedStateMachine):
    """An engine may store any chain whose parent is held, and remove any block that is held."""

    make: type[MemoryIndex] = MemoryIndex

    def __init__(self) -> None:
        super().__init__()
        self.index = self.make(clock=lambda: 0.0)
        self.copies: defaultdict[str, Counter[Block]] = defaultdict(Counter)

    def held(self, replica_id: str, salt: str | None, prompt: Prompt) -> int:
        """Leading blocks of a prompt that the model holds."""
        depth = 0
        while depth < len(prompt) and self.copies[replica_id][salt, prompt[: depth + 1]]:
            depth += 1
        return depth

    @rule(replica_id=REPLICAS, salt=SALTS, prompt=PROMPTS, start=st.integers(0, 3))
    def store(self, replica_id: str, salt: str | None, prompt: Prompt, start: int) -> None:
        start = min(start, len(prompt) - 1)
        if start and not self.copies[replica_id][salt, prompt[:start]]:
            return
        blocks = [(salt, prompt[: end + 1]) for end in range(start, len(prompt))]
        parent = handle_of((salt, prompt[:start])) if start else None
        keys = [[salt] if salt and not start else None, *[None] * (len(blocks) - 1)]
        handles = [handle_of(block) for block in blocks]
        tokens = tokens_of(prompt[start:])
        self.index.store(replica_id, stored(handles, tokens, parent, extra_keys=keys))
        self.copies[replica_id].update(blocks)

    @rule(replica_id=REPLICAS, data=st.data())
    def remove(self, replica_id: str, data: st.DataObject) -> None:
        copies = self.copies[replica_id]
        live = sorted((block for block, count in copies.items() if count), key=repr)
        if live:
            block = data.draw(st.sampled_from(live))
            self.index.remove(replica_id, removed(handle_of(block)))
            copies[block] -= 1

    @rule(replica_id=REPLICAS, kind=st.sampled_from([0, 1]), data=st.data())
    def remove_a_copy_and_go_on(self, replica_id: str, kind: int, data: st.DataObject) -> None:
        """A child comes right after a copy of its parent has gone, before anybody has asked."""
        copies = self.copies[replica_id]
        twice = sorted((block for block, count in copies.items() if count > 1), key=repr)
        if twice:
            salt, prompt = block = data.draw(st.sampled_from(twice))
            self.index.remove(replica_id, removed(handle_of(block)))
            copies[block] -= 1
            self.store(replica_id, salt, (*prompt, kind), len(prompt))

    @rule(replica_id=REPLICAS)
    def clear(self, replica_id: str) -> None:
        self.index.clear(replica_id)
        self.copies[replica_id].clear()

    @rule(replica_id=REPLICAS)
    def forget(self, replica_id: str) -> None:
        self.index.forget(replica_id)
        self.copies[replica_id].clear()

    @rule()
    def tidy(self) -> None:
        self.index.tidy(1)

    @rule(salt=SALTS, prompt=PROMPTS)
    def match(self, salt: str | None, prompt: Prompt) -> None:
        expected = {replica_id: self.held(replica_id, salt, prompt) for replica_id in "abc"}
        expected = {replica_id: depth for replica_id, depth in expected.items() if depth}
        assert self.index.match(prefix(tokens_of(prompt), salt=salt)) == expected

    @rule()
    def holds_what_the_model_holds(self) -> None:
        """No invariant: who asks after each step makes the index settle what it puts off."""
        for replica_id in "abc":
            blocks = {
                prefix(tokens_of(prompt), salt=salt)[-1]
                for (salt, prompt), count in self.copies[replica_id].items()
                if count
            }
            assert self.index.blocks_of(replica_id) == blocks

    def teardown(self) -> None:
        self.holds_what_the_model_holds()
        held = self.index.replicas()
        for replica_id in "abc":
            blocks = [count for count in self.copies[replica_id].values() if count]
            assert held.get(replica_id, 0) == len(blocks)


def machine(make: type[MemoryIndex]) -> type[IndexMachine]:
    """The machine over one implementation."""
    return type(f"IndexMachineOver{make.__name__}", (IndexMachine,), {"make": make})


@pytest.mark.timeout(300)
@pytest.mark.parametrize("make", list(MAKERS.values()), ids=list(MAKERS))
def test_any_life_of_an_index_is_the_models(make: type[MemoryIndex]) -> None:
    limits = settings(max_examples=30, stateful_step_count=40, deadline=None)
    run_state_machine_as_test(machine(make), settings=limits)

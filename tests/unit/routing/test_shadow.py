"""Policies that are asked and never act: what they would do is counted, nothing else changes."""

from random import Random

import pytest

from router.blocks import BlockStored
from router.index.memory import MemoryIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix, Speeds
from router.routing.cost import predicted_ttft_ms
from router.routing.shadow import NoShadows, Shadows
from tests.support.builders import ManualClock

BLOCK = 16
TOKENS = list(range(64 * BLOCK))
REPLICAS = ("r1", "r2", "r3")


@pytest.fixture
def clock():
    return ManualClock()


def make(clock, acting, *others):
    index = MemoryIndex(clock=clock)
    index.store("r2", BlockStored(tuple(range(1, 65)), None, TOKENS, BLOCK))
    policy = POLICIES[acting](Random(1))
    chooser = Chooser(index, Reservations(clock), Speeds(), policy, clock)
    return chooser, Shadows.of(
        chooser, acting, {name: POLICIES[name](Random(1)) for name in others}
    )


def contenders(tokens=TOKENS):
    from router.blocks import as_tokens, hash_blocks

    prefix = Prefix(hash_blocks(as_tokens(tokens), BLOCK), BLOCK)
    return [Contender(name, "m", prefix) for name in REPLICAS]


def send(chooser, shadows, tokens=TOKENS):
    choice = chooser.consider(Ask(len(tokens)), contenders(tokens))
    shadows.observe(choice)
    return choice, chooser.claim(choice, choice.decision.replicas[0])


def test_what_a_shadow_would_take_is_counted_by_prediction(clock):
    chooser, shadows = make(clock, "round-robin", "cache-aware")
    choices = [send(chooser, shadows)[0] for _ in range(3)]
    acted, shadow = shadows.tallies
    assert (acted.policy, acted.requests, acted.same) == ("round-robin", 3, 3)
    assert (shadow.policy, shadow.requests, shadow.same) == ("cache-aware", 3, 1)
    hit = choices[0].candidates["r2"].hit_tokens
    assert hit == 63 * BLOCK
    assert acted.hit_tokens < shadow.hit_tokens
    assert shadow.prompt_tokens == 3 * len(TOKENS)
    first = predicted_ttft_ms(choices[0].query, choices[0].candidates["r2"])
    assert shadow.recent_ms[0] == pytest.approx(first)
    assert sum(shadow.buckets) == 3
    assert shadow.ttft_sum_ms == pytest.approx(sum(shadow.recent_ms))


@pytest.mark.parametrize("name", POLICIES)
def test_no_shadow_changes_what_is_done(clock, name):
    alone, _ = make(clock, name)
    watched, shadows = make(clock, name, *(other for other in POLICIES if other != name))
    for number in range(20):
        tokens = TOKENS[number % 5 :]
        clock.advance(0.01)
        choice = alone.consider(Ask(len(tokens)), contenders(tokens))
        alone.claim(choice, choice.decision.replicas[0])
        assert send(watched, shadows, tokens)[0].decision == choice.decision
        loads = [
            (c.reservations.load(i), c.speeds.of(i, "m"))
            for c in (alone, watched)
            for i in REPLICAS
        ]
        assert loads[:3] == loads[3:]
    assert {tally.requests for tally in shadows.tallies} == {20}


def test_a_shadow_by_history_knows_where_prompts_really_went(clock):
    chooser, shadows = make(clock, "cache-aware", "approximate")
    other = [7 * token for token in TOKENS]
    first, _ = send(chooser, shadows, other)
    clock.advance(60)
    send(chooser, shadows, other)
    (shadow,) = shadows.shadows
    prefix = first.contenders["r1"].prefix.hashes
    assert shadow.chooser.history.match(prefix) == {first.decision.replicas[0]: len(prefix)}
    assert chooser.history.match(prefix) == {}
    shadows.forget(first.decision.replicas[0])
    assert shadow.chooser.history.match(prefix) == {}


def test_prompts_are_tokenized_if_a_shadow_reads_them(clock):
    assert make(clock, "round-robin", "lmetric")[1].needs_prefix
    assert not make(clock, "round-robin", "random")[1].needs_prefix
    assert not NoShadows().needs_prefix


def test_what_is_remembered_is_bounded(clock):
    chooser, shadows = make(clock, "random", "round-robin")
    for _ in range(1200):
        _, claim = send(chooser, shadows)
        claim.release()
    assert len(shadows.tallies[1].recent_ms) == 1000
    assert shadows.tallies[1].requests == 1200

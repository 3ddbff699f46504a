"""What lies in a slower tier of a replica's cache is a hit that takes time to load."""

from random import Random

import pytest

from router.blocks import as_tokens, hash_blocks
from router.gateway.explain import candidate_row
from router.index import TieredIndex
from router.index.reservations import Reservations
from router.routing import POLICIES, Ask, Chooser, Contender, Prefix
from router.routing.choosing import Choice
from router.routing.cost import Surroundings
from router.routing.speeds import Speeds
from tests.support.events import stored

TOKENS = list(range(8192))
PROMPT_TOKENS = len(TOKENS)
PREFIX = Prefix(hash_blocks(as_tokens(TOKENS), 16), 16)
HALF = 4096


def choice_with(load_ms_per_ktoken: float, *, expected: bool = False) -> Choice:
    """`near` holds nothing; `far` has the first half in its own memory, all of it in a tier.

    `expected`: a request with this prompt is under way there.
    """
    index = TieredIndex(clock=lambda: 0.0, load_ms_per_ktoken={"CPU": load_ms_per_ktoken})
    handles = range(512)
    index.store("far", stored(handles[:256], TOKENS[:HALF], block_size=16))
    index.store("far", stored(handles, TOKENS, block_size=16, medium="CPU"))
    chooser = Chooser(
        *(index, Reservations(lambda: 0.0), Speeds(), POLICIES["cache-aware"](Random(1))),
        clock=lambda: 0.0,
        beyond=index.beyond,
    )
    contenders = [Contender(name, "", PREFIX) for name in ("near", "far")]
    choice = chooser.consider(Ask(PROMPT_TOKENS), contenders)
    if expected:
        chooser.claim(choice, "far")
        choice = chooser.consider(Ask(PROMPT_TOKENS), contenders)
    return choice


def test_a_tier_adds_to_the_hit_and_its_loading_to_the_predicted_ttft():
    choice = choice_with(5.0)
    far = choice.candidates["far"]
    assert far.matched_tokens == HALF
    assert far.hit_tokens == PROMPT_TOKENS - 16  # an engine computes the last token itself
    assert far.loaded_tokens == far.hit_tokens - HALF
    assert far.load_ms == pytest.approx(5.0 * HALF / 1000)
    instant = choice_with(0.0).decision.costs_ms["far"]
    assert choice.decision.costs_ms["far"] == pytest.approx(instant + far.load_ms)


def test_a_tier_saves_the_less_the_slower_it_is():
    def saved_ms(load_ms_per_ktoken: float) -> float:
        costs = choice_with(load_ms_per_ktoken).decision.costs_ms
        return costs["near"] - costs["far"]

    assert saved_ms(0.0) > saved_ms(10.0) > saved_ms(100.0)


def test_a_tier_that_is_slower_than_computing_sends_the_prompt_elsewhere():
    assert choice_with(1.0).decision.replicas[0] == "far"
    assert choice_with(10_000.0).decision.replicas[0] == "near"


def test_what_another_request_brings_near_is_not_loaded_twice():
    far = choice_with(5.0, expected=True).candidates["far"]
    assert (far.loaded_tokens, far.load_ms) == (0, 0.0)
    assert far.hit_tokens == PROMPT_TOKENS - 16


def test_explain_names_the_blocks_of_each_tier_and_what_keeps_a_replica_from_being_first():
    choice = choice_with(5.0)
    around = Surroundings.of(list(choice.candidates.values()))
    near, far = (candidate_row(choice, choice.candidates[i], around) for i in ("near", "far"))
    assert near["tiers"] == {"gpu": 0}
    assert far["tiers"] == {"gpu": 256, "CPU": 256}
    assert far["because"] == "match"
    assert near["because"].startswith("prefill +")

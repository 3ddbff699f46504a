"""A plan sends a prompt where its blocks are, and its claim is load until the block ends."""

import json

import pytest

from router.blocks import BlockStored, as_tokens
from router.errors import ModelNotFound, NoReplicaAvailable
from router.index.reservations import Reservations
from router.index.tiers import TieredIndex
from router.openai.generation import parse_generation
from router.planner import Planner
from router.replicas import Pool
from router.routing import Chooser, Reason, Speeds
from router.routing.policies.cache_aware import CacheAware
from router.source import OwnIndex
from router.tokens.protocol import Reason as TokenizeReason
from router.tokens.protocol import TokenizeFailed
from tests.support.builders import ManualClock, model_rows, replica

BLOCK = 16
PROMPT = list(range(100, 164))


class ScriptedTokenizer:
    """Gives the prompt's ids as the body has them, or fails as told."""

    failure: TokenizeReason | None = None

    async def tokenize(self, generation):
        if self.failure is not None:
            raise TokenizeFailed(self.failure)
        return as_tokens(json.loads(generation.body)["prompt"]).tobytes()

    def recall(self, generation):
        return None


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def planner(clock):
    pool = Pool(clock)
    pool.reconcile([replica("r1"), replica("r2")])
    for name in ("r1", "r2"):
        pool.mark_up(name, model_rows("m", "style", adapter_of="m"))
    chooser = Chooser(
        index=(index := TieredIndex(clock=clock)),
        reservations=Reservations(clock),
        speeds=Speeds(),
        policy=CacheAware(),
        clock=clock,
    )
    tokenizer, source = ScriptedTokenizer(), OwnIndex(index)
    return Planner(pool=pool, tokenizer=tokenizer, source=source, chooser=chooser)


def store(planner, replica_id, tokens, *, extra=None, lora=None):
    blocks = len(tokens) // BLOCK
    hashes = tuple(hash((replica_id, i, str(extra), lora)) & (2**63 - 1) for i in range(blocks))
    keys = None if extra is None else [extra] + [None] * (blocks - 1)
    planner.chooser.index.store(
        replica_id,
        BlockStored(hashes, None, tokens, BLOCK, extra_keys=keys, lora_name=lora),
    )


def ask(prompt=PROMPT, **fields):
    body = json.dumps({"model": "m", "prompt": prompt, "stream": True, **fields}).encode()
    return parse_generation("/v1/completions", {}, body)


async def test_a_prompt_goes_where_its_blocks_are(planner):
    store(planner, "r2", PROMPT)
    with await planner.plan(ask()) as plan:
        assert plan.replicas[0].id == "r2"
        assert plan.decision.reason is Reason.MATCH
        assert plan.predicted_hit_tokens("r2") == 48
        assert plan.reachable_hit_tokens == 48
        assert plan.prefix("r2").blocks == 4


async def test_the_claim_is_load_until_the_block_ends(planner):
    store(planner, "r2", PROMPT)
    with await planner.plan(ask()):
        assert planner.chooser.reservations.load("r2").queued_tokens == len(PROMPT) - 48
    assert planner.chooser.reservations.in_flight("r2") == 0


async def test_moving_to_another_replica_takes_the_load_along(planner):
    with await planner.plan(ask()) as plan:
        first, second = (r.id for r in plan.replicas)
        plan.move(second)
        assert planner.chooser.reservations.in_flight(first) == 0
        assert planner.chooser.reservations.in_flight(second) == 1


async def test_a_second_cold_prompt_follows_the_first_that_is_being_computed(planner):
    store(planner, "r1", [7] * BLOCK)
    store(planner, "r2", [7] * BLOCK)
    # long enough that to compute it again costs more than to wait for the end of a step
    with (
        await planner.plan(ask(PROMPT * 16)) as first,
        await planner.plan(ask(PROMPT * 16)) as second,
    ):
        assert second.replicas[0] == first.replicas[0]
        assert second.decision.reason is Reason.EXPECTED


async def test_the_first_token_teaches_the_replicas_speed(planner, clock):
    planner.pool.mark_down("r2", "refused")
    for _ in range(2):  # the second ends the first one's step
        with await planner.plan(ask(PROMPT * 50)) as plan:
            clock.advance(3.2)
            assert plan.first_token() == pytest.approx(3200)
    assert planner.chooser.speeds.of("r1", "m").ms_per_token > 0.5


@pytest.mark.parametrize(
    ("stored", "asked", "hit"),
    [
        ({"extra": ["tenant"]}, {"cache_salt": "tenant"}, 48),
        ({"extra": ["tenant"]}, {"cache_salt": "other"}, 0),
        ({"extra": ["tenant"]}, {}, 0),
        ({"extra": ["style"], "lora": "style"}, {"model": "style"}, 48),
        ({"extra": ["style"], "lora": "style"}, {"model": "m"}, 0),
        ({"extra": ["style"], "lora": "style"}, {"cache_salt": "style"}, 0),
    ],
)
async def test_salts_and_adapters_never_mix(planner, stored, asked, hit):
    store(planner, "r1", PROMPT, **stored)
    with await planner.plan(ask(**asked)) as plan:
        assert plan.predicted_hit_tokens("r1") == hit


async def test_a_prompt_without_tokens_is_routed_all_the_same(planner):
    planner.tokenizer.failure = TokenizeReason.TIMEOUT
    with await planner.plan(ask()) as plan:
        assert plan.tokenize_failure == "timeout"
        assert plan.predicted_hit_tokens(plan.replicas[0].id) is None
        assert plan.reachable_hit_tokens is None


async def test_an_unknown_model_is_named_with_those_that_are_served(planner):
    with pytest.raises(ModelNotFound, match="m, style"):
        await planner.plan(ask(model="absent"))


async def test_a_known_model_without_a_healthy_replica_is_unavailable(planner):
    for name in ("r1", "r2"):
        planner.pool.mark_down(name, "refused")
    with pytest.raises(NoReplicaAvailable) as caught:
        await planner.plan(ask())
    assert caught.value.retry_after_s is not None

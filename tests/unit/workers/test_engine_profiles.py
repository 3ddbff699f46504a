"""The timing model and the profiles that ship."""

import pytest

from tests.support.engine import FLAT, sequence, tokens_of
from workers.engine.options import EngineOptions, settle
from workers.engine.pool import BlockPool
from workers.engine.profile import Profile, load_profile, profile_names
from workers.engine.scheduler import Scheduler, Share

MODEL = Profile(
    name="model",
    basis="round numbers",
    step_ms=10.0,
    prefill_step_ms=5.0,
    decode_ms_per_sequence=1.0,
    decode_ms_per_kv_token=0.1,
    prefill_ms_per_token=0.5,
    prefill_ms_per_token_squared=0.01,
    cached_ms_per_token=0.25,
    kv_tokens=1024,
    max_model_len=512,
)


def share(tokens, context):
    return Share(sequence(tokens_of(0, 4)), tokens, context)


def test_decoding_costs_per_sequence_and_per_token_read():
    assert MODEL.time_ms([share(1, 100), share(1, 50)]) == pytest.approx(10 + 2 + 15)


def test_prefill_costs_grow_with_the_square_of_the_context():
    assert MODEL.time_ms([share(20, 0)]) == pytest.approx(15 + 10 + 0.01 * 20 * 20)
    assert MODEL.time_ms([share(20, 30)]) == pytest.approx(15 + 10 + 0.01 * 20 * 80)


def test_chunks_cost_together_what_the_whole_prompt_costs_beside_the_steps():
    whole = MODEL.time_ms([share(40, 0)])
    chunks = MODEL.time_ms([share(15, 0)]) + MODEL.time_ms([share(25, 15)])
    assert chunks == pytest.approx(whole + 15)


def test_hits_cost_a_little_in_the_step_that_admits_them():
    scheduler = Scheduler(BlockPool(64), 4, 8, 64)
    durations_ms = []
    for _ in range(2):
        scheduler.add(sequence(tokens_of(0, 9)))
        step = scheduler.plan()
        durations_ms.append(MODEL.duration_s(step) * 1e3 - MODEL.time_ms(step.shares))
        scheduler.commit(step)
        scheduler.remove(step.shares[0].sequence)
    assert durations_ms == pytest.approx([0.0, 0.25 * 8])


def test_the_h200_profile_meets_the_published_first_token_times():
    profile = load_profile("h200-8b-fp8")
    published = {100: 19.5, 1117: 38.5, 2134: 50.0, 4168: 87.3, 8236: 171.0}
    for tokens, ms in published.items():
        assert profile.time_ms([share(tokens, 0)]) + profile.host_ms == pytest.approx(ms, abs=10)


@pytest.mark.parametrize("name", profile_names())
def test_every_profile_makes_an_engine(name):
    profile, sizes = settle(EngineOptions(profile=name))
    assert profile.name == name
    assert sizes.kv_tokens <= profile.kv_tokens
    assert sizes.max_model_len < sizes.kv_tokens


def test_an_unknown_profile_is_an_error_that_lists_the_known_ones():
    with pytest.raises(ValueError, match="laptop"):
        load_profile("tardis")


def test_a_profile_of_ones_own_is_read_from_a_file(tmp_path):
    path = tmp_path / "own.yaml"
    fields = {name: getattr(FLAT, name) for name in FLAT.__struct_fields__}
    path.write_text("".join(f"{name}: {value!r}\n" for name, value in fields.items()))
    assert load_profile(str(path)) == FLAT
    path.write_text("name: half\n")
    with pytest.raises(ValueError, match="basis"):
        load_profile(str(path))


@pytest.mark.parametrize(
    "options",
    [
        EngineOptions(num_blocks=8, max_model_len=128),
        EngineOptions(num_blocks=1),
        EngineOptions(speed_up=0.0),
        EngineOptions(block_size=0),
    ],
)
def test_sizes_that_contradict_each_other_are_refused(options):
    with pytest.raises(ValueError, match=r"needs a cache|must be positive"):
        settle(options)

"""Load is booked with the choice and let go with the stream, however it ends."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.index.load import Load, pairs_of
from router.index.reservations import Reservation, Reservations
from router.index.residency import common_blocks
from router.index.told import Told
from router.routing import Ttft
from tests.support.builders import ManualClock


@pytest.fixture
def clock():
    return ManualClock()


@pytest.fixture
def book(clock):
    return Reservations(clock)


def claim(book, clock, replica_id="r1", tokens=100, cost_ms=50.0, **values):
    reservation = Reservation(
        replica_id, tokens, cost_ms, values.pop("prefix", ()), clock(), **values
    )
    book.take(reservation)
    return reservation


def test_a_claim_is_load_at_once(book, clock):
    claim(book, clock)
    assert book.load("r1") == Load(
        queued_tokens=100, wait_ms=50.0, waiting=1, recent_ms=50.0, mean_ms=50.0,
        queued_pairs=5000,
    )  # fmt: skip
    assert book.load("r2") == Load()


def test_after_its_first_token_a_request_decodes(book, clock):
    book.computed(claim(book, clock))
    load = book.load("r1")
    assert (load.running, load.waiting, load.wait_ms) == (1, 0, 0.0)


def test_releasing_twice_counts_once(book, clock):
    first, second = claim(book, clock), claim(book, clock)
    for _ in range(2):
        book.release(first)
    assert book.in_flight("r1") == 1
    book.release(second)
    assert book.in_flight("r1") == 0


def test_the_prefill_at_the_head_is_worked_off_as_time_passes(book, clock):
    claim(book, clock, cost_ms=100.0)
    claim(book, clock, cost_ms=100.0)
    clock.advance(0.06)
    assert book.load("r1").wait_ms == pytest.approx(140.0)


def test_a_prompt_that_comes_while_a_step_runs_waits_for_its_end(book, clock):
    claim(book, clock, cost_ms=100.0, step_ms=30.0, host_ms=10.0)
    clock.advance(0.05)
    # the step ends 140 ms after the booking, and what comes now could be in one at 60
    assert book.load("r1").wait_ms == pytest.approx(80.0)


def test_prompts_that_waited_for_the_same_step_are_in_the_next_one_together(book, clock):
    first = claim(book, clock, cost_ms=100.0, step_ms=30.0)
    for _ in range(2):
        claim(book, clock, cost_ms=50.0, step_ms=30.0)
    clock.advance(0.13)
    book.computed(first)
    clock.advance(0.06)
    claim(book, clock, cost_ms=20.0, step_ms=30.0)
    assert book.load("r1").wait_ms == pytest.approx(30.0 + 100.0 - 60.0 + 20.0)


def test_a_prompt_longer_than_a_step_is_alone_in_it(book, clock):
    first = claim(book, clock, tokens=100, cost_ms=1.0)
    for _ in range(2):
        claim(book, clock, tokens=30_000, cost_ms=300.0)
    clock.advance(0.01)
    book.computed(first)
    clock.advance(60)
    assert book.load("r1").wait_ms == pytest.approx(0.1 * 300.0 + 300.0)


def test_a_time_from_the_step_before_is_told_from_one_from_the_booking(book, clock):
    first, second = claim(book, clock, host_ms=10.0), claim(book, clock, host_ms=10.0)
    clock.advance(0.1)
    book.computed(first)
    clock.advance(0.05)
    alone = book.computed(second)
    assert (alone.is_alone, alone.ended - alone.began) == (True, pytest.approx(0.1))
    third = claim(book, clock, host_ms=10.0)
    clock.advance(0.2)
    behind = book.computed(third)
    assert (behind.is_alone, behind.ended - behind.began) == (False, pytest.approx(0.05))


def test_a_replica_slower_than_predicted_never_looks_idle(book, clock):
    claim(book, clock, cost_ms=100.0)
    clock.advance(60)
    assert book.load("r1").wait_ms == pytest.approx(10.0)


def test_a_reply_that_is_not_streamed_counts_as_computed_after_its_predicted_time(book, clock):
    claim(book, clock, cost_ms=100.0, silent=True)
    clock.advance(0.11)
    assert (book.load("r1").running, book.load("r1").waiting) == (1, 0)


def test_prompts_whose_first_tokens_come_together_were_one_step(book, clock):
    first, second = claim(book, clock, tokens=300), claim(book, clock, tokens=100)
    clock.advance(0.5)
    assert book.computed(first) is None
    assert book.computed(second) is None
    third = claim(book, clock, tokens=50)
    clock.advance(0.1)
    batch = book.computed(third)
    assert batch is not None
    assert batch.uncached_tokens == 400
    assert batch.ended - batch.began == pytest.approx(0.5)


def test_a_step_is_over_once_no_other_first_token_can_be_of_it(book, clock):
    first, second = claim(book, clock, tokens=300), claim(book, clock, tokens=100)
    clock.advance(0.5)
    book.computed(first)
    clock.advance(0.04)
    book.computed(second)
    assert book.over() == []
    clock.advance(0.02)
    (batch,) = book.over()
    assert (batch.replica_id, batch.uncached_tokens) == ("r1", 400)
    assert book.over() == []


def together(book, clock, count, tokens=1500):
    """So many prompts that wait for the end of a step that another one is in."""
    opener = claim(book, clock, tokens=10, cost_ms=1.0)
    clock.advance(0.01)
    found = [claim(book, clock, tokens=tokens, cost_ms=150.0) for _ in range(count)]
    clock.advance(0.01)
    book.computed(opener)
    clock.advance(0.01)
    book.over()
    return found


def whole(book, clock, *claims):
    """Their first tokens come together; the step that they were computed in."""
    clock.advance(0.2)
    for one in claims:
        book.computed(one)
    clock.advance(0.05)
    (batch,) = book.over()
    return batch


def test_who_waits_still_was_not_in_the_step_of_who_does_not(book, clock):
    first, second, third = together(book, clock, 3)
    # steps of 2048, though all three would have been in one of 8192
    assert whole(book, clock, first).uncached_tokens == 1500
    assert book.load("r1").queued_tokens == 3000
    assert whole(book, clock, second).uncached_tokens == 1500
    assert whole(book, clock, third).uncached_tokens == 1500
    assert book.load("r1").queued_tokens == 0
    assert whole(book, clock, *together(book, clock, 3)).uncached_tokens == 4500


def test_a_step_that_somebody_was_wrongly_thought_to_be_in_teaches_nothing(book, clock):
    first, second = together(book, clock, 2)
    first.is_lesson = second.is_lesson = True
    assert not whole(book, clock, first).is_lesson
    assert whole(book, clock, second).is_lesson


def test_attention_looks_at_each_pair_once_however_a_prompt_is_cut_into_steps(book, clock):
    first = claim(book, clock, tokens=9000, prompt_tokens=10_000)
    second = claim(book, clock, tokens=9000, prompt_tokens=9000)
    before = pairs_of(1000, 10_000) + pairs_of(0, 9000)
    assert book.load("r1").queued_pairs == before
    clock.advance(1.0)
    book.computed(first)
    left = book.load("r1").queued_pairs
    assert left == pairs_of(2 * 8192 - 9000, 9000)
    clock.advance(0.5)
    assert book.computed(second).pairs == before - left
    assert book.load("r1").queued_pairs == 0


def test_a_head_that_takes_longer_than_predicted_is_late(book, clock):
    claim(book, clock, cost_ms=90.0, step_ms=10.0, is_lesson=True)
    assert book.load("r1").late == 0.0
    clock.advance(0.25)
    assert book.load("r1").late == pytest.approx(2.5)
    claim(book, clock, "r2", cost_ms=100.0)  # whose time says nothing of speed
    clock.advance(0.5)
    assert book.load("r2").late == 0.0


def test_what_waits_has_another_price_when_more_is_known(book, clock):
    for _ in range(3):
        claim(book, clock, tokens=100, cost_ms=10.0)
    book.reprice("r1", Ttft(20.0, 0.5, 0.0, host_ms=5.0))
    assert book.load("r1").wait_ms == pytest.approx(15.0 + 150.0)
    book.reprice("r2", Ttft())
    assert book.load("r2") == Load()


def test_a_step_is_filled_with_prompts_behind_whose_tokens_its_time_is_of(book, clock):
    first = claim(book, clock, tokens=9000, cost_ms=900.0)
    second = claim(book, clock, tokens=9000, cost_ms=900.0)
    clock.advance(0.1)
    late = claim(book, clock, tokens=9000, cost_ms=900.0)
    clock.advance(1.6)
    book.computed(first)  # two steps of 8192: its own 9000, and 7384 of the second
    load = book.load("r1")
    assert load.queued_tokens == 9000 - 7384 + 9000
    assert load.wait_ms == pytest.approx(1800.0 - 738.4)
    clock.advance(0.8)
    batch = book.computed(second)
    assert (batch.uncached_tokens, batch.ended - batch.began) == (2 * 8192, pytest.approx(1.7))
    clock.advance(0.3)
    batch = book.computed(late)  # which waited when that step began, so that it was filled up
    assert batch.uncached_tokens == 8192
    load = book.load("r1")
    assert (load.queued_tokens, load.wait_ms, load.running) == (0, 0.0, 3)


def test_a_prompt_that_came_while_the_last_step_ran_is_not_in_it(book, clock):
    first = claim(book, clock, tokens=1000, cost_ms=100.0)
    clock.advance(0.05)
    second = claim(book, clock, tokens=500, cost_ms=50.0)
    clock.advance(0.05)
    book.computed(first)
    assert book.load("r1").queued_tokens == 500
    clock.advance(0.05)
    assert book.computed(second).uncached_tokens == 1000


def test_prompts_that_share_a_beginning_hold_it_once(book, clock):
    shared = list(range(80))
    for number in range(3):
        prefix = (*shared, *range(1000 * (number + 1), 1000 * (number + 1) + 16))
        claim(book, clock, prefix=prefix, prompt_tokens=96 * 16, block_size=16)
    assert book.load("r1").resident_tokens == (80 + 3 * 16) * 16


def test_large_blocks_hide_little_of_what_is_shared(book, clock):
    for number in range(3):
        prefix = (*range(93), *range(1000 * (number + 1), 1000 * (number + 1) + 19))
        claim(book, clock, prefix=prefix, prompt_tokens=112 * 64, block_size=64)
    held = (93 + 3 * 19) * 64
    assert held <= book.load("r1").resident_tokens <= held + 3 * 64


def test_answers_hold_what_they_have_decoded_by_now_and_no_more_than_answers_do(book, clock):
    book.answers.ended(10_000.0, 400)
    early, late = claim(book, clock), claim(book, clock)
    prompts = book.load("r1").resident_tokens
    book.computed(early)
    clock.advance(5.0)
    assert book.load("r1").resident_tokens == prompts + 200
    book.computed(late)
    clock.advance(5.0)
    assert book.load("r1").resident_tokens == prompts + 400 + 200
    clock.advance(1000.0)
    assert book.load("r1").resident_tokens == prompts + 800
    book.release(early)
    assert book.load("r1").resident_tokens == prompts - early.prompt_tokens + 400
    book.release(late)
    assert book.load("r1").resident_tokens == 0


prompts = st.lists(st.integers(0, 3), max_size=40).map(
    lambda steps: [hash(tuple(steps[: i + 1])) for i in range(len(steps))]
)


@given(prefixes=st.lists(prompts, max_size=12), data=st.data())
def test_what_was_taken_is_given_back_in_any_order(prefixes, data):
    book = Reservations(ManualClock())
    claims = [
        Reservation("r", 10, 1.0, prefix, 0.0, prompt_tokens=16 * len(prefix) + 5, block_size=16)
        for prefix in prefixes
    ]
    for one in claims:
        book.take(one)
    for one in data.draw(st.permutations(claims)):
        if data.draw(st.booleans()):
            book.computed(one)
        book.release(one)
        book.release(one)
    load = book.load("r")
    assert (load.in_flight, load.queued_tokens, load.resident_tokens) == (0, 0, 0)


def test_what_is_being_computed_is_expected_until_the_stream_ends(book, clock):
    one = claim(book, clock, prefix=[1, 2, 3])
    assert book.expected([1, 2, 9]) == {"r1": 2}
    book.computed(one)
    assert book.expected([1, 2, 9]) == {"r1": 2}
    book.release(one)
    assert book.expected([1, 2, 9]) == {}


def test_two_claims_of_one_prefix_first_ends_second_stays(book, clock):
    first = claim(book, clock, prefix=[1, 2])
    claim(book, clock, prefix=[1, 2, 3])
    book.release(first)
    assert book.expected([1, 2, 3]) == {"r1": 3}


@given(st.lists(st.integers(0, 3)), st.lists(st.integers(0, 3)))
def test_common_blocks_equals_walking(one_tail, other_tail):
    def chain(items):
        hashes: list[int] = []
        state: tuple[int, ...] = ()
        for item in items:
            state = (*state, item)
            hashes.append(hash(state))
        return hashes

    one, other = chain(one_tail), chain(other_tail)
    walked = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        walked += 1
    assert common_blocks(one, other) == walked


@given(st.lists(st.tuples(st.sampled_from("tcr"), st.integers(0, 5), st.integers(0, 2))))
def test_in_any_order_of_ends_the_load_returns_to_zero(steps):
    clock = ManualClock()
    book = Reservations(clock)
    claims = {}
    for verb, number, lane in steps:
        if verb == "t" and number not in claims:
            claims[number] = claim(book, clock, f"r{lane}", prefix=[1, number])
        elif verb == "c" and number in claims:
            book.computed(claims[number])
        elif verb == "r" and number in claims:
            book.release(claims.pop(number))
    for reservation in claims.values():
        book.release(reservation)
    loads = [book.load(f"r{lane}") for lane in range(3)]
    assert all(load.in_flight == load.queued_tokens == load.wait_ms == 0 for load in loads)
    assert book.expected([1, 2]) == {}


def test_recent_work_outlives_the_request_and_fades(book, clock):
    book.release(claim(book, clock, cost_ms=80.0))
    clock.advance(30)
    assert book.load("r1").recent_ms == pytest.approx(40.0)
    book.forget("r1")
    assert book.load("r1") == Load()


def test_a_head_is_not_late_for_what_others_may_have_sent_before_it(book, clock):
    claim(book, clock, cost_ms=90.0, step_ms=10.0, is_lesson=True)
    clock.advance(0.3)
    assert book.load("r1").late == pytest.approx(3.0)
    told = Told(clock, late_s=10.0)
    told.tell("two", "r1", Load(), clock())
    book.others = told
    assert book.load("r1").late == 0.0

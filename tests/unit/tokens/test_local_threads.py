"""Long work leaves the event loop, is bounded in time, and what hangs takes nothing with it."""

import asyncio
import threading
import time

import pytest

from router.tokens import EngineFlags, Limits, LocalTokenizer, Reason, TokenizeFailed
from router.tokens.encoder import Encoder
from router.tokens.memo import Memo
from router.tokens.workers import WorkerLimits
from tests.support.tokens import (
    byte_level_tokenizer,
    chat,
    completion,
    unpack,
    user,
    write_model_dir,
)

LONG = "The quick brown fox jumps over the lazy dog. " * 200
FOREVER = (
    "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    "{% for m in messages %}{{ m.content }}{% endfor %}"
)


class GatedEncoder(Encoder):
    """Encodes when the gate is open, and notes the threads that it was called in."""

    def __init__(self):
        super().__init__(byte_level_tokenizer(), Memo(1 << 20))
        self.gate = threading.Event()
        self.threads = []

    def encode_pieces(self, pieces):
        self.threads.append(threading.get_ident())
        self.gate.wait(30)
        return super().encode_pieces(pieces)


@pytest.fixture
def encoder():
    made = GatedEncoder()
    yield made
    made.gate.set()


def over(encoder, **limits):
    return LocalTokenizer(encoder, {}, limits=Limits(**limits), variables={}, name="m")


async def reason_of(tokenizer, generation):
    with pytest.raises(TokenizeFailed) as failed:
        await tokenizer.tokenize(generation)
    return failed.value.reason


async def until(condition) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is awaited has no event
            await asyncio.sleep(0.001)


async def test_long_texts_are_encoded_in_a_thread_and_short_ones_here(encoder):
    encoder.gate.set()
    made = over(encoder, deadline_s=20)
    ids = await made.tokenize(completion(LONG))
    assert unpack(ids) == byte_level_tokenizer().encode(LONG).ids
    await made.tokenize(completion("short"))
    assert encoder.threads[0] != threading.get_ident() == encoder.threads[1]
    assert await made.tokenize(completion(LONG)) == ids
    assert len(encoder.threads) == 2


async def test_what_misses_the_deadline_is_remembered_for_the_next_time(encoder):
    made = over(encoder, deadline_s=0.05)
    assert await reason_of(made, completion(LONG)) is Reason.TIMEOUT
    encoder.gate.set()
    await until(lambda: len(encoder.memo) == 1)
    assert await made.tokenize(completion(LONG)) != b""
    assert len(encoder.threads) == 1


async def test_the_deadline_holds_for_rendering_too(tmp_path):
    limits = Limits(deadline_s=0.1, inline_bytes=10)
    made = LocalTokenizer.load(write_model_dir(tmp_path, template=FOREVER), limits=limits)
    started = time.monotonic()
    failed = await reason_of(made, chat([user("Hi")]))
    assert failed in (Reason.TIMEOUT, Reason.TEMPLATE_ERROR)
    assert time.monotonic() - started < 5
    await until(lambda: made.workers.pending == made.workers.stuck == 0)


async def test_a_looping_template_stops_and_spares_the_requests_after_it(tmp_path, caplog):
    """Inline at first: the event loop is given back after `inline_s`, and for good."""
    source = "{% if messages[0].content == 'loop' %}" + FOREVER + "{% endif %}fox"
    limits = Limits(deadline_s=0.2, inline_s=0.02)
    made = LocalTokenizer.load(
        write_model_dir(tmp_path), limits=limits, flags=EngineFlags(chat_template=source)
    )
    assert await reason_of(made, chat([user("loop")])) in (Reason.TIMEOUT, Reason.TEMPLATE_ERROR)
    await until(lambda: made.workers.pending == 0)
    fox = byte_level_tokenizer().encode("fox").ids
    patient = Limits(deadline_s=20)
    assert unpack(await made.tokenize(chat([user("Hi")]))) == fox
    slow = LocalTokenizer.load(
        write_model_dir(tmp_path), limits=patient, flags=EngineFlags(chat_template=source)
    )
    assert unpack(await slow.tokenize(chat([user("Hi")]))) == fox
    assert "Hi" not in caplog.text


async def test_a_tokenizer_that_hangs_costs_threads_up_to_a_bound(encoder):
    workers = WorkerLimits(threads=1, max_stuck=2)
    made = over(encoder, deadline_s=0.05, workers=workers)
    number = 0
    async with asyncio.timeout(30):
        while made.workers.stuck < 3:
            number += 1
            assert await reason_of(made, completion(f"{number}{LONG}")) is Reason.TIMEOUT
    started = time.monotonic()
    assert await reason_of(made, completion(f"a{LONG}")) is Reason.BUSY
    assert time.monotonic() - started < 1
    encoder.gate.set()
    await until(lambda: made.workers.stuck == made.workers.pending == 0)
    patient = over(encoder, deadline_s=20)
    assert await patient.tokenize(completion(f"4{LONG}")) != b""


async def test_after_a_hang_the_threads_work_again(encoder):
    made = over(encoder, deadline_s=0.5, workers=WorkerLimits(threads=1, max_stuck=1))
    assert await reason_of(made, completion(LONG)) is Reason.TIMEOUT
    assert await reason_of(made, completion(f"2{LONG}")) is Reason.TIMEOUT
    encoder.gate.set()
    await until(lambda: made.workers.pending == 0)
    before = threading.active_count()
    for number in range(3, 6):
        async with asyncio.timeout(20):
            assert await made.tokenize(completion(f"{number}{LONG}")) != b""
    assert threading.active_count() <= before + 1


async def test_too_many_at_once_are_busy_and_room_comes_back(encoder):
    made = over(encoder, deadline_s=20, workers=WorkerLimits(max_pending=2))
    waiting = [asyncio.create_task(made.tokenize(completion(f"{i}{LONG}"))) for i in range(2)]
    await until(lambda: made.workers.pending == 2)
    assert await reason_of(made, completion(f"2{LONG}")) is Reason.BUSY
    encoder.gate.set()
    await asyncio.gather(*waiting)
    assert await made.tokenize(completion(f"3{LONG}")) != b""


async def test_a_client_that_leaves_gives_its_place_back(encoder):
    made = over(encoder, deadline_s=20, workers=WorkerLimits(max_pending=1))
    leaving = asyncio.create_task(made.tokenize(completion(LONG)))
    await until(lambda: len(encoder.threads) == 1)
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    encoder.gate.set()
    await until(lambda: made.workers.pending == 0)
    assert await made.tokenize(completion(LONG)) != b""


async def test_a_job_that_nobody_waits_for_is_not_begun(encoder):
    made = over(encoder, deadline_s=0.05, workers=WorkerLimits(threads=1, max_stuck=0))
    tries = [reason_of(made, completion(f"{i}{LONG}")) for i in range(3)]
    assert set(await asyncio.gather(*tries)) == {Reason.TIMEOUT}
    encoder.gate.set()
    await until(lambda: made.workers.pending == 0)
    assert len(encoder.threads) == 1


async def test_an_error_in_a_thread_reaches_its_request(tmp_path):
    limits = Limits(inline_bytes=10, deadline_s=20)
    made = LocalTokenizer.load(write_model_dir(tmp_path), limits=limits)
    assert await reason_of(made, chat([user([{"type": "image"}])])) is Reason.MULTIMODAL

"""The client and the runner against a real socket."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest

from loadgen.client import Exchange, Target, open_client
from loadgen.record import Record
from loadgen.reply import USAGE_PER_CHUNK
from loadgen.runner import Runner, RunOptions, RunResult, Tally
from loadgen.workload.protocol import Message, Session, Turn
from tests.support.loadgen import (
    DONE,
    ROLE,
    Answer,
    Script,
    ScriptedServer,
    chunk,
    plain_answer,
    serve,
    sse,
    usage,
    usage_chunk,
)

SOME = Turn(messages=(Message("user", "hello"),), max_tokens=4, input_tokens=1)
GAP_S = 0.05


class Listed:
    """A workload that is a list."""

    name = "listed"
    parameters: dict[str, object] = {}  # noqa: RUF012  (read only)

    def __init__(self, *sessions: Session) -> None:
        self._sessions = sessions

    @property
    def requests(self) -> int:
        return sum(len(session.turns) for session in self._sessions)

    def sessions(self):
        return iter(self._sessions)


def always(*parts: bytes | float, **fields: Any) -> Answer:
    return lambda body: Script(parts, **fields)


async def sent(
    answer: Answer, check: Callable[[ScriptedServer], None] | None = None, timeout_s: float = 10.0
) -> Exchange:
    async with serve(answer) as server:
        target = Target(server.url, "m")
        async with open_client(target, time.perf_counter, timeout_s) as client:
            exchange = await client.send(target.body(SOME.messages, 4), {})
        if check:
            check(server)
    return exchange


async def played(server: ScriptedServer, *sessions: Session, **options: Any) -> RunResult:
    target = Target(server.url, "m")
    async with open_client(target, time.perf_counter, 10.0) as client:
        runner = Runner(client, RunOptions(**options), time.perf_counter)
        return await runner.run(Listed(*sessions))


async def test_first_token_is_the_first_text_not_the_role_chunk():
    parts: list[bytes | float] = [
        ROLE,
        GAP_S,
        chunk({"content": "a"}),
        GAP_S,
        chunk({"content": "b"}),
    ]
    async with serve(always(*parts, chunk({}, "stop"), usage_chunk(9, 2, 4), DONE)) as server:
        result = await played(server, Session("s", 0.0, (SOME,)))
    record = result.records[0]
    assert record.is_ok
    assert record.ttft_s is not None
    assert record.ttft_s >= GAP_S
    assert record.arrival_tokens == [1, 1]
    ((gap_s, _),) = record.chunk_gaps()
    assert GAP_S * 0.8 <= gap_s < 1.0
    assert (record.prompt_tokens, record.cached_tokens, record.completion_tokens) == (9, 4, 2)


async def test_several_tokens_per_chunk_are_counted_by_running_usage():
    parts: list[bytes | float] = []
    for total, text in ((3, "one two three "), (5, "four five ")):
        parts += [chunk({"content": text}, usage=usage(9, total)), GAP_S]
    exchange = await sent(always(*parts, DONE))
    assert exchange.reply.tokens() == ([3, 2], USAGE_PER_CHUNK)


async def test_bytes_cut_anywhere_give_the_same_answer():
    stream = plain_answer(["a", "b", "c"], prompt=20, cached=16)
    exchange = await sent(always(*(stream[n : n + 7] for n in range(0, len(stream), 7))))
    assert exchange.outcome == "ok"
    assert exchange.reply.text == "a b c "
    assert exchange.reply.usage is not None
    assert exchange.reply.usage.cached_tokens == 16


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (always(chunk({"content": "a"}), sse({"error": {"message": "oom"}}), DONE), "error_event"),
        (always(chunk({"content": "a"})), "incomplete"),
        (always(chunk({"content": "a"}), is_cut=True), "disconnect"),
        (always(ROLE, chunk({}, "stop"), DONE), "empty"),
        (always(b"data: nonsense\n\n", DONE), "broken"),
        (always(b'{"error": "busy"}', status=503), "http"),
    ],
)
async def test_every_way_to_fail_is_an_outcome(answer, outcome):
    exchange = await sent(answer)
    assert exchange.outcome == outcome
    assert exchange.end_at >= exchange.sent_at


async def test_connection_lost_after_done_cannot_unsay_the_answer():
    exchange = await sent(always(plain_answer(["a"]), is_cut=True))
    assert exchange.outcome == "ok"


async def test_answer_that_takes_too_long_is_a_timeout():
    exchange = await sent(always(chunk({"content": "a"}), 5.0), timeout_s=0.2)
    assert exchange.outcome == "timeout"


async def test_nobody_listening_is_a_connect_failure():
    async with serve(always()) as server:
        url = server.url
    target = Target(url, "m")
    async with open_client(target, time.perf_counter, 5.0) as client:
        exchange = await client.send(b"{}", {})
    assert exchange.outcome == "connect"


async def test_request_asks_for_a_stream_with_usage_and_no_compression():
    def check(server: ScriptedServer) -> None:
        (body,), (headers,) = server.asked, server.headers
        assert body["stream"] is True
        assert body["stream_options"] == {"include_usage": True}
        assert body["messages"] == [{"role": "user", "content": "hello"}]
        assert headers["accept-encoding"] == "identity"

    await sent(always(plain_answer(["a"])), check)


def test_completions_endpoint_gets_a_prompt_that_only_grows():
    target = Target("http://h", "m", endpoint="completions")
    short = [Message("system", "one"), Message("user", "two")]
    assert target.path == "/v1/completions"
    assert b'"prompt":"one\\n\\ntwo"' in target.body(short, 1)


async def test_replica_and_request_id_are_taken_from_the_headers():
    names = {"x-warmgate-replica": "r3", "x-request-id": "abc"}
    exchange = await sent(always(plain_answer(["a"]), headers=names))
    assert (exchange.replica, exchange.request_id) == ("r3", "abc")


def turns(n: int, think_s: float = 0.0) -> tuple[Turn, ...]:
    return tuple(Turn((Message("user", f"q{k}"),), 2, 0, think_s) for k in range(n))


async def test_conversation_sends_history_with_the_answers_in_it():
    async with serve(always(plain_answer(["yes"]))) as server:
        await played(server, Session("s", 0.0, turns(2)))
    contents = [[m["content"] for m in body["messages"]] for body in server.asked]
    assert contents == [["q0"], ["q0", "yes ", "q1"]]


async def test_next_turn_is_due_a_think_time_after_the_answer():
    async with serve(always(plain_answer(["yes"]))) as server:
        result = await played(server, Session("s", 0.0, turns(2, think_s=0.1)))
    first, second = result.records
    assert second.scheduled_s == pytest.approx(first.end_s + 0.1)
    assert second.sent_s >= second.scheduled_s


async def test_broken_conversation_leaves_its_turns_unsent():
    async with serve(always(status=500)) as server:
        result = await played(server, Session("s", 0.0, turns(3)))
    assert (len(result.records), result.planned) == (1, 3)


async def test_open_loop_sends_on_time_while_nothing_was_answered():
    sessions = [Session(f"s{n}", 0.01 * n, (SOME,)) for n in range(20)]
    async with serve(always(0.5, plain_answer(["a"]))) as server:
        result = await played(server, *sessions)
    assert server.open_most == 20
    assert all(record.is_ok for record in result.records)


async def test_more_than_a_hundred_requests_are_open_at_once():
    sessions = [Session(f"s{n}", 0.0, (SOME,)) for n in range(150)]
    async with serve(always(6.0, plain_answer(["a"]))) as server:
        await played(server, *sessions)
    assert server.open_most == 150


async def test_cap_holds_back_but_latency_still_runs_from_the_schedule():
    sessions = [Session(f"s{n}", 0.0, (SOME,)) for n in range(4)]
    async with serve(always(0.1, plain_answer(["a"]))) as server:
        result = await played(server, *sessions, max_concurrency=1)
    assert server.open_most == 1
    last = max(result.records, key=lambda record: record.sent_s)
    assert last.ttft_s is not None
    assert last.ttft_sent_s is not None
    assert last.ttft_s >= 0.4
    assert last.ttft_s > last.ttft_sent_s + 0.25
    assert last.cap_wait_s == pytest.approx(last.send_lag_s, abs=0.05)


async def test_session_header_is_sent_where_asked_for():
    async with serve(always(plain_answer(["a"]))) as server:
        await played(server, Session("s7", 0.0, (SOME,)), session_header="x-session-id")
        await played(server, Session("s7", 0.0, (SOME,)))
    assert [headers.get("x-session-id") for headers in server.headers] == ["s7", None]


class StopAfter:
    """Sets an event at the n-th answer."""

    def __init__(self, n: int, stop: Any) -> None:
        self._left = n
        self._stop = stop

    def sent(self) -> None:
        return

    def finished(self, record: Record) -> None:
        self._left -= 1
        if not self._left:
            self._stop.set()

    def add(self, progress: Tally) -> None:
        return


async def test_stopped_run_keeps_what_was_answered():
    stop = asyncio.Event()
    sessions = [Session(f"s{n}", 0.0 if n < 3 else 60.0, (SOME,)) for n in range(6)]
    async with serve(always(plain_answer(["a"]))) as server:
        target = Target(server.url, "m")
        async with open_client(target, time.perf_counter, 10.0) as client:
            runner = Runner(client, RunOptions(), time.perf_counter, StopAfter(3, stop))
            result = await runner.run(Listed(*sessions), stop)
    assert result.is_stopped
    assert len(result.records) == 3

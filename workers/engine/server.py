"""Generation over HTTP: chats and completions, in one piece or as a stream."""

import secrets
import time
from array import array
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from aiohttp import web

from workers.engine.asks import (
    Ask,
    Chat,
    CompletionAsk,
    Refused,
    check_ask,
    read_ask,
    truncated,
)
from workers.engine.choices import (
    CollectedChoice,
    Job,
    QuickChoice,
    Reader,
    ReplyStyle,
    StreamedChoice,
)
from workers.engine.core import EngineCore
from workers.engine.engine import Engine
from workers.engine.reading import PlainReader, StopReader
from workers.engine.replies import CHAT, COMPLETION, DONE, Dialect, Head, Outcome, Usage, as_chunk
from workers.engine.sequence import Finish, Identity, Listener
from workers.engine.wire import ResettingWire, SoundWire, StallingWire, Wire

JSON: Final = "application/json"
_STREAM_HEADERS: Final = {"Content-Type": "text/event-stream; charset=utf-8"}
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@web.middleware
async def errors_as_json(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Refused requests get vLLM's error body."""
    try:
        return await handler(request)
    except Refused as exc:
        return web.Response(body=exc.body(), status=exc.status, content_type=JSON)


@dataclass(frozen=True, slots=True)
class Call:
    """One checked request, ready to run."""

    ask: Ask
    prompts: "list[array[int]]"
    identity: Identity
    style: ReplyStyle
    wire: Wire
    core: EngineCore

    @property
    def choices(self) -> range:
        """Numbers of the choices; those of one prompt follow one another."""
        return range(len(self.prompts) * self.ask.n)

    def prompt_of(self, choice: int) -> "array[int]":
        return self.prompts[choice // self.ask.n]

    def job(self) -> Job:
        return Job(self.ask.n, self.core.abort, self.wire.cut)


class Generation:
    """The two generating endpoints."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    async def chat(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        body = await request.read()
        ask = read_ask(Ask, body)
        self._engine.adapter_of(ask.model)
        check_ask(ask)
        text = read_ask(Chat, body).render(self._engine.tokenizer)
        prompt = await self._engine.encode(text)
        return await self._answer(request, self._call(request, ask, CHAT, [prompt]))

    async def complete(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/completions."""
        ask = read_ask(CompletionAsk, await request.read())
        self._engine.adapter_of(ask.model)
        check_ask(ask)
        prompts = [
            await self._engine.encode(prompt) if isinstance(prompt, str) else prompt
            for prompt in ask.prompts()
        ]
        return await self._answer(request, self._call(request, ask, COMPLETION, prompts))

    async def _answer(self, request: web.Request, call: Call) -> web.StreamResponse:
        await call.wire.begin()
        if call.ask.stream:
            return await self._stream(request, call)
        return await self._whole(call)

    async def _whole(self, call: Call) -> web.Response:
        with call.job() as job:
            choices = [
                CollectedChoice(number, call.style, self._reader(call.ask), job)
                for number in call.choices
            ]
            if not self._engine.draining:  # else: no text, finish_reason "abort", as vLLM
                self._start(call, job, choices)
                await job.done
        await call.wire.whole()
        outcomes = [choice.outcome(call.prompt_of(number)) for number, choice in enumerate(choices)]
        return self._reply(call, outcomes, job.usage(self._engine.sizes.block_size))

    async def _stream(self, request: web.Request, call: Call) -> web.StreamResponse:
        response = web.StreamResponse(headers=_STREAM_HEADERS)
        response.enable_chunked_encoding()
        writer = await response.prepare(request)
        if writer is not None:
            writer.send_headers()  # long before the first token, as vLLM does
        with call.job() as job:
            job.opening = self._opening(call)
            if self._engine.draining:
                self._refuse_stream(call, job)
            else:
                self._start(call, job, [self._streamed(call, job, at) for at in call.choices])
                await job.done
            await call.wire.end()
            self._end_stream(call, job.usage(self._engine.sizes.block_size))
        await response.write_eof()
        return response

    def _start(self, call: Call, job: Job, listeners: Sequence[Listener]) -> None:
        for number, listener in enumerate(listeners):
            sequence = self._engine.sequence(
                call.ask,
                call.prompt_of(number),
                call.identity,
                number % call.ask.n,
                listener,
                continues=not call.style.dialect.chat,
            )
            job.add(sequence)
        for sequence in job.sequences:
            call.core.submit(sequence)

    def _refuse_stream(self, call: Call, job: Job) -> None:
        call.wire.send(job.take_opening())
        extra = {"finish_reason": Finish.ABORT}
        for number in call.choices:
            line = call.style.dialect.token_line(call.style.head, number, "", extra)
            call.wire.send(as_chunk(line))

    def _end_stream(self, call: Call, usage: Usage) -> None:
        end = as_chunk(DONE)
        if call.ask.usage_in_stream.include_usage:
            end = as_chunk(call.style.dialect.usage_line(call.style.head, usage)) + end
        call.wire.send(end)

    def _opening(self, call: Call) -> bytes:
        dialect = call.style.dialect
        if not dialect.chat:
            return b""
        prompt = call.prompts[0] if call.style.token_ids else None
        return b"".join(
            as_chunk(dialect.opening(call.style.head, number, prompt)) for number in call.choices
        )

    def _streamed(self, call: Call, job: Job, number: int) -> Listener:
        style, ask = call.style, call.ask
        careful = StreamedChoice(number, style, self._reader(ask), job, call.wire)
        if ask.stops or style.token_ids or style.running_usage:
            return careful
        return QuickChoice(number, style, job, call.wire, careful)

    def _call(
        self, request: web.Request, ask: Ask, dialect: Dialect, prompts: "list[array[int]]"
    ) -> Call:
        prompts = [truncated(ask, prompt, self._engine.sizes.max_model_len) for prompt in prompts]
        for prompt in prompts:
            self._engine.ending(ask, len(prompt))  # whatever can be refused is refused here
        faults = self._engine.faults
        if faults.strikes(faults.current.http.error):
            raise Refused(faults.current.http.error_status, "Injected fault", "InternalServerError")
        session = ask.session_id or request.headers.get("X-Session-ID")
        return Call(
            ask,
            prompts,
            Identity(ask.cache_salt, self._engine.adapter_of(ask.model), session),
            self._style(request, ask, dialect),
            self._wire(request),
            self._engine.core_for(request.headers.get("X-data-parallel-rank")),
        )

    def _style(self, request: web.Request, ask: Ask, dialect: Dialect) -> ReplyStyle:
        request_id = request.headers.get("X-Request-Id") or secrets.token_hex(8)
        model = ask.model or self._engine.options.model_names[0]
        return ReplyStyle(
            dialect,
            Head(dialect.id_prefix + request_id, int(time.time()), model),
            self._engine.author.vocabulary.json_pieces,
            token_ids=bool(ask.return_token_ids),
            running_usage=ask.usage_in_stream.continuous_usage_stats,
            final_fingerprint=not ask.usage_in_stream.include_usage,
            stop_tokens=frozenset(ask.stop_token_ids or ()),
        )

    def _wire(self, request: web.Request) -> Wire:
        transport = request.transport
        if transport is None:
            raise ConnectionResetError("the client has left")
        wire = SoundWire(transport)
        http, strikes = self._engine.faults.current.http, self._engine.faults.strikes
        if strikes(http.stall):
            return StallingWire(wire, http.after_tokens)
        if strikes(http.reset):
            return ResettingWire(wire, http.after_tokens)
        return wire

    def _reader(self, ask: Ask) -> Reader:
        pieces = self._engine.author.vocabulary.pieces
        if not ask.stops:
            return PlainReader(pieces, keep_stop=ask.include_stop_str_in_output)
        return StopReader(
            pieces,
            ask.stops,
            keep_stop=ask.include_stop_str_in_output,
            min_tokens=ask.min_tokens,
        )

    def _reply(self, call: Call, outcomes: list[Outcome], usage: Usage) -> web.Response:
        body = call.style.dialect.body(call.style.head, outcomes, usage)
        return web.Response(body=body, content_type=JSON)

"""What one streamed answer said, and when: no I/O, so it can be tested against any chunking.

A *delta* is a piece of the answer with text in it (content, reasoning or a tool call). An
*arrival* is a read from the socket that brought at least one delta: deltas that come in one read
came at one time, and to give them gaps of zero would invent an inter-token latency.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from loadgen.sse import Event, EventParser, EventTooLong

DONE: Final = b"[DONE]"
MESSAGE_CHARACTERS: Final = 300

ONE_PER_DELTA: Final = "one-per-delta"
USAGE_PER_CHUNK: Final = "usage-per-chunk"
BY_TEXT: Final = "by-text"
DELTAS: Final = "deltas"


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: Any = None


class _ToolCall(msgspec.Struct, gc=False):
    function: _Function | None = None


class _Delta(msgspec.Struct, gc=False):
    content: Any = None
    reasoning_content: str | None = None
    reasoning: Any = None
    tool_calls: list[_ToolCall] | None = None


class _Choice(msgspec.Struct, gc=False):
    delta: _Delta | None = None
    text: str | None = None
    finish_reason: str | None = None


class _PromptDetails(msgspec.Struct, gc=False):
    cached_tokens: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """The engine's count of tokens; `cached_tokens` is None where the engine is silent."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _PromptDetails | None = None

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the engine took from its cache, as it says itself."""
        details = self.prompt_tokens_details
        return None if details is None else details.cached_tokens


class _Chunk(msgspec.Struct, gc=False):
    choices: list[_Choice] | None = None
    usage: Usage | None = None
    error: Any = None
    object: str | None = None


_decode = msgspec.json.Decoder(_Chunk).decode


class Arrival(msgspec.Struct, frozen=True, gc=False):
    """`completion_tokens`: the running count that came with it, where the engine sends one."""

    at: float
    deltas: int
    characters: int
    completion_tokens: int | None


class Reply:
    """Collects one stream. Times are whatever clock `feed` is given."""

    def __init__(self) -> None:
        self.arrivals: list[Arrival] = []
        self.first_content_at: float | None = None
        self.events = 0
        self.usage: Usage | None = None
        self.finish_reason: str | None = None
        self.is_done = False
        self.error: str | None = None
        self.broken: str | None = None
        self._parser = EventParser()
        self._content: list[str] = []

    @property
    def text(self) -> str:
        """The answer's content, without reasoning and tool calls."""
        return "".join(self._content)

    def feed(self, at: float, data: bytes) -> None:
        """Take one read, stamped before anything else was done with it."""
        try:
            self._take(at, self._parser.feed(data))
        except EventTooLong as exc:
            self.broken = str(exc)

    def close(self, at: float) -> None:
        """The stream ended."""
        self._take(at, self._parser.close())

    def failure(self) -> tuple[str, str] | None:
        """Why this is no whole answer: (kind, message); None when it is one. After `close`."""
        if self.error is not None:
            return "error_event", self.error
        if self.broken is not None:
            return "broken", self.broken
        if not self.is_done and self.finish_reason is None:
            return "incomplete", "the stream ended without finish_reason and [DONE]"
        if not self.arrivals:
            return "empty", "no token in the answer"
        return None

    def tokens(self) -> tuple[list[int], str]:
        """Tokens in each arrival, and how they were found; zero where text came without a token.

        Only the engine knows. With a usage in every chunk the count is exact; a total that is
        about the number of deltas means one token each; else the total is shared out by text.
        """
        deltas = [arrival.deltas for arrival in self.arrivals]
        running = [arrival.completion_tokens for arrival in self.arrivals]
        known = [count for count in running if count is not None]
        if known and len(known) == len(running):
            return _differences(known), USAGE_PER_CHUNK
        total = None if self.usage is None else self.usage.completion_tokens
        if total is None:
            return deltas, DELTAS
        # An end token has no text, a character of several tokens comes as one delta.
        if abs(total - sum(deltas)) <= max(1, total // 20):
            return deltas, ONE_PER_DELTA
        return _share_out(total, [arrival.characters for arrival in self.arrivals]), BY_TEXT

    def _take(self, at: float, events: Sequence[Event]) -> None:
        deltas = characters = 0
        running: int | None = None
        for event in events:
            self.events += 1
            chunk = self._chunk(event)
            if chunk is None:
                continue
            if chunk.usage is not None:
                self.usage = chunk.usage
                running = chunk.usage.completion_tokens
            for choice in chunk.choices or ():
                length = self._read_choice(at, choice)
                deltas += length > 0
                characters += length
        if deltas:
            self.arrivals.append(Arrival(at, deltas, characters, running))

    def _chunk(self, event: Event) -> _Chunk | None:
        if self.is_done or self.broken is not None:
            return None
        if event.data == DONE:
            self.is_done = True
            return None
        if event.name == b"error":
            self.error = _shorten(event.data)
            return None
        try:
            chunk = _decode(event.data)
        except msgspec.MsgspecError as exc:
            self.broken = f"{exc}: {_shorten(event.data)}"
            return None
        if chunk.error is not None or chunk.object == "error":
            self.error = _shorten(event.data)
            return None
        return chunk

    def _read_choice(self, at: float, choice: _Choice) -> int:
        if choice.finish_reason:
            self.finish_reason = choice.finish_reason
        delta = choice.delta
        content = choice.text or (None if delta is None else delta.content)
        length = 0
        if content:
            if self.first_content_at is None:
                self.first_content_at = at
            text = _as_text(content)
            self._content.append(text)
            length = len(text)
        return length if delta is None else length + _length_of_others(delta)


def _as_text(value: object) -> str:
    # Some servers stream content as a list of parts.
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _length_of_others(delta: _Delta) -> int:
    """Characters of reasoning and of tool calls."""
    thought = delta.reasoning_content or delta.reasoning
    length = len(_as_text(thought)) if thought else 0
    for call in delta.tool_calls or ():
        if call.function is not None:
            parts = (call.function.name, call.function.arguments)
            length += sum(len(_as_text(part)) for part in parts if part)
    return length


def _differences(running: Sequence[int]) -> list[int]:
    before = [0, *running[:-1]]
    return [max(0, count - last) for count, last in zip(running, before, strict=True)]


def _share_out(total: int, weights: Sequence[int]) -> list[int]:
    """Whole numbers in proportion to `weights` that sum to `total`; the first is at least one."""
    whole = sum(weights)
    shares, seen, given = [], 0, 0
    for weight in weights:
        seen += weight
        upto = max(round(total * seen / whole), min(total, 1))
        shares.append(upto - given)
        given = upto
    return shares


def _shorten(data: bytes) -> str:
    return data[:MESSAGE_CHARACTERS].decode("utf-8", "replace")

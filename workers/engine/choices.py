"""The listeners behind a reply: one per choice, for a stream or for a reply in one piece."""

import asyncio
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from workers.engine.replies import FINGERPRINT, Dialect, Head, Outcome, Usage, as_chunk
from workers.engine.sequence import Finish, Sequence
from workers.engine.wire import Wire


class Reader(Protocol):
    """Turns tokens into text (see `workers.engine.reading`)."""

    @property
    def stopped_by(self) -> str | None:
        """The stop string that ended the answer."""

    def read(self, token: int, finish: Finish | None) -> tuple[str, Finish | None]:
        """Text to pass on, and why the answer ends, if it does."""


@dataclass(frozen=True, slots=True)
class ReplyStyle:
    """How one reply is written."""

    dialect: Dialect
    head: Head
    json_pieces: tuple[bytes, ...]
    """Each token's text, escaped for JSON."""
    token_ids: bool = False
    running_usage: bool = False
    final_fingerprint: bool = True
    """In a stream's last chunk with text; with `include_usage` the usage chunk has it instead."""
    stop_tokens: frozenset[int] = frozenset()
    """Those that the client named: they become the `stop_reason`."""


class Job:
    """One request's sequences and the moment when all have ended."""

    def __init__(
        self, per_prompt: int, abort: Callable[[Sequence], None], cut: Callable[[], None]
    ) -> None:
        """`per_prompt`: choices of each prompt (n), which follow one another."""
        self.sequences: list[Sequence] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.opening = b""
        """What a stream's first token brings along: the roles of all choices, as HTTP chunks."""
        self._per_prompt = per_prompt
        self._abort = abort
        self._cut = cut
        self._open = 0

    def add(self, sequence: Sequence) -> None:
        self.sequences.append(sequence)
        self._open += 1

    def one_ended(self) -> None:
        """A choice has its last token."""
        self._open -= 1
        if not self._open and not self.done.done():
            self.done.set_result(None)

    def lost(self) -> None:
        """The engine gave a sequence up: the connection breaks, as if the process had died."""
        self._cut()

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, *_: object) -> None:
        for sequence in self.sequences:
            if sequence.finish is None:
                self._abort(sequence)

    def take_opening(self) -> bytes:
        """The opening, once."""
        opening, self.opening = self.opening, b""
        return opening

    def usage(self, block_size: int) -> Usage:
        """The whole request's counts. A prompt with n choices counts once, as in vLLM."""
        n = self._per_prompt
        groups = [self.sequences[at : at + n] for at in range(0, len(self.sequences), n)]
        full = sum(group[0].prompt_len // block_size * block_size for group in groups)
        hits = sum(max(seq.hit_tokens for seq in group) for group in groups)
        return Usage(
            prompt_tokens=sum(group[0].prompt_len for group in groups),
            completion_tokens=sum(seq.answered for seq in self.sequences),
            hit_tokens=hits,
            created_tokens=max(0, full - hits),
        )


class CollectedChoice:
    """Keeps an answer until it is complete."""

    def __init__(self, index: int, style: ReplyStyle, reader: Reader, job: Job) -> None:
        self._index = index
        self._style = style
        self._reader = reader
        self._job = job
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._finish = Finish.ABORT

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        text, finish = self._reader.read(token, finish)
        self._text.append(text)
        self._tokens.append(token)
        if finish is not None:
            self._finish = finish
            self._job.one_ended()
        return finish

    def aborted(self) -> None:
        self._job.lost()

    def outcome(self, prompt: "array[int]") -> Outcome:
        """The finished choice."""
        with_ids = self._style.token_ids
        return Outcome(
            self._index,
            "".join(self._text),
            self._finish,
            stop_reason(self._style, self._reader, self._tokens, self._finish),
            self._tokens if with_ids else None,
            prompt.tolist() if with_ids else None,
        )


class StreamedChoice:
    """Writes each token to the client as it comes."""

    def __init__(self, index: int, style: ReplyStyle, reader: Reader, job: Job, wire: Wire) -> None:
        self._index = index
        self._style = style
        self._reader = reader
        self._job = job
        self._wire = wire
        self._first = True

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        if self._job.opening:
            self._wire.send(self._job.take_opening())
        text, finish = self._reader.read(token, finish)
        line = self._style.dialect.token_line(
            self._style.head, self._index, text, self._extra(token, finish)
        )
        self._first = False
        self._wire.token(as_chunk(line))
        if finish is not None:
            self._job.one_ended()
        return finish

    def aborted(self) -> None:
        self._job.lost()

    def _extra(self, token: int, finish: Finish | None) -> dict[str, Any]:
        extra: dict[str, Any] = {}
        style = self._style
        sequence = self._job.sequences[self._index]
        if style.token_ids:
            extra["token_ids"] = [token]
            if self._first:
                extra["prompt_token_ids"] = sequence.tokens[: sequence.prompt_len].tolist()
        if style.running_usage:
            extra["usage"] = Usage(sequence.prompt_len, sequence.answered).brief()
        if finish is not None:
            extra["finish_reason"] = finish
            extra["stop_reason"] = stop_reason(style, self._reader, [token], finish)
            if style.final_fingerprint:
                extra["system_fingerprint"] = FINGERPRINT
        return extra


class QuickChoice:
    """A stream without extras: all chunks but the first and last are copies of a template."""

    def __init__(
        self, index: int, style: ReplyStyle, job: Job, wire: Wire, careful: StreamedChoice
    ) -> None:
        """`careful`: writes what is not a copy."""
        self._job = job
        self._wire = wire
        self._careful = careful
        self._pieces = style.json_pieces
        self._before, self._after = style.dialect.token_template(style.head, index)
        self._size = len(self._before) + len(self._after)

    def token(self, token: int, finish: Finish | None) -> Finish | None:
        if finish is not None or self._job.opening:
            return self._careful.token(token, finish)
        piece = self._pieces[token]
        self._wire.token(
            b"%x\r\n%b%b%b\r\n" % (self._size + len(piece), self._before, piece, self._after)
        )
        return None

    def aborted(self) -> None:
        self._job.lost()


def stop_reason(
    style: ReplyStyle, reader: Reader, tokens: list[int], finish: Finish
) -> str | int | None:
    """The stop string, or the stop token that the client named; None for the model's own end."""
    if finish is not Finish.STOP:
        return None
    if reader.stopped_by is not None:
        return reader.stopped_by
    last = tokens[-1] if tokens else None
    return last if last in style.stop_tokens else None

"""The reply's bytes on their way: what passes, what is kept back, what is noted."""

from typing import Protocol

from router.errors import RouterError
from router.openai.usage import Usage, find_usage
from router.proxy.body import Body, ChunkedBody, whole_chunks
from router.proxy.client import Client
from router.proxy.head import BadReply, Head
from router.proxy.reply import Limits
from router.proxy.sse import (
    Sign,
    error_event,
    first_event_end,
    is_aborted,
    last_event_end,
    sign_of,
)
from router.proxy.tail import Tail


class Opener(Protocol):
    """Belongs to the splices: sends the head, notes the first byte."""

    def open(self, length: int | None) -> None:
        """Commit to this replica's reply. `length`: of the whole body, if known."""

    def first_byte(self, start: bytes) -> None:
        """The body begins with `start`, which is about to be sent."""

    def first_byte_sent(self) -> None:
        """The client's socket has it."""


class Splice(Protocol):
    """Takes a body's raw bytes and gets them to the client. `is_whole`: the last one came."""

    is_whole: bool

    @property
    def has_begun(self) -> bool:
        """The engine is at it: from here on, silence is measured against the idle limit."""

    def feed(self, data: bytes) -> None:
        """Raises BadReply."""

    def close(self) -> bool:
        """The engine closed its end. True if that completes the body."""

    def cut(self, path: str, error: RouterError) -> None:
        """End the client's reply, already begun, so that it can't be taken for whole."""

    def usage(self) -> Usage | None:
        """What the reply said that it cost, as far as it came."""

    def holds_error(self) -> bool:
        """The reply has status 200 and carries an error."""

    def blames_client(self) -> bool:
        """It is an error that the client has caused."""


class PlainSplice:
    """Any body but a stream of events.

    Up to `held_bytes` are kept back: a body that fits is sent in one piece, and an engine that
    dies in it can be replaced by another.
    """

    def __init__(
        self,
        head: Head,
        body: Body,
        client: Client,
        opener: Opener,
        *,
        held_bytes: int,
        tail_bytes: int,
    ) -> None:
        self.is_whole = False
        self._body = body
        self._client = client
        self._opener = opener
        self._length = head.length
        self._held_bytes = held_bytes
        self._held: bytes | None = b""
        self._early = b""
        self._is_failure = head.status >= 500
        self._tail_bytes = tail_bytes
        self._tail: Tail | None = None

    @property
    def has_begun(self) -> bool:
        return self._held is None or bool(self._held)

    def feed(self, data: bytes) -> None:
        body = self._body
        payload = body.decode(data)
        if self._held is None:
            self._keep(payload)
            self._client.send(payload)
        else:
            self._held += payload
            if body.is_whole or len(self._held) > self._held_bytes:
                self._release(self._held)
        if body.is_whole:
            self.is_whole = True
            self._client.end()

    def close(self) -> bool:
        if not self._body.ends_with_connection():
            return False
        self.feed(b"")
        return True

    def cut(self, path: str, error: RouterError) -> None:
        self._client.break_off()

    def usage(self) -> Usage | None:
        late = None if self._tail is None else self._tail.usage()
        return late or find_usage(self._early)

    def holds_error(self) -> bool:
        return False

    def blames_client(self) -> bool:
        return self._tail is not None and self._tail.blames_client()

    def _keep(self, payload: bytes) -> None:
        if self._tail is None:
            self._tail = Tail(self._tail_bytes)
        self._tail.add(payload)

    def _release(self, held: bytes) -> None:
        if self._body.is_whole and is_aborted(held):
            raise BadReply("aborted the request before the first token")
        self._held, self._early = None, held
        self._opener.open(len(held) if self._body.is_whole else self._length)
        self._opener.first_byte(held)
        self._client.send(held)
        self._opener.first_byte_sent()
        if self._is_failure:
            self._keep(held)


class EventSplice:
    """A stream of server-sent events.

    Until the first token everything is kept back, so that another replica can still answer. From
    then on whole events pass at once, and what follows the last whole event is kept back, so that
    an engine that dies in it can still be followed by an error event. Chunks that hold whole
    events pass untouched; others are framed anew at the ends of events.
    """

    def __init__(self, body: Body, client: Client, opener: Opener, limits: Limits) -> None:
        self.is_whole = False
        self._body = body
        self._chunks = body if isinstance(body, ChunkedBody) else None
        self._client = client
        self._opener = opener
        self._held_bytes = limits.held_bytes
        self._tail = Tail(limits.tail_bytes)
        self._pending = bytearray()
        self._searched = 0
        self._is_torn = False
        self._has_token = False
        self._is_beginning = False
        # between chunks and between events: the next chunks may pass as they are
        self._is_aligned = False
        self._ending = b"\n\n\r\n"

    @property
    def has_begun(self) -> bool:
        """Headers, roles and comments come long before the prefill is done: they don't count."""
        return self._has_token

    def feed(self, data: bytes) -> None:
        if self._is_aligned:
            # the path that nearly every event takes
            end = whole_chunks(data, self._ending)
            if end == len(data):
                self._tail.add(data)
                self._client.send_raw(data)
                return
            if end:
                self._tail.add(data[:end])
                self._client.send_raw(data[:end])
                data = data[end:]
        self._pending += self._body.decode(data)
        if not self._has_token:
            self._look()
        if self._has_token:
            self._pass_events()
        if self._body.is_whole:
            self._finish()
        elif self._is_beginning:
            self._tell_sent()
        chunks = self._chunks
        self._is_aligned = (
            self._has_token
            and not (self._pending or self._is_torn or self.is_whole)
            and chunks is not None
            and chunks.is_between_chunks
            and self._client.sends_chunks
        )

    def close(self) -> bool:
        if not self._body.ends_with_connection():
            return False
        self._finish()
        return True

    def cut(self, path: str, error: RouterError) -> None:
        if self._is_torn:
            self._client.break_off()
            return
        self._client.send(error_event(path, error))
        self._client.end()

    def usage(self) -> Usage | None:
        return self._tail.usage()

    def holds_error(self) -> bool:
        return self._tail.holds_error()

    def blames_client(self) -> bool:
        return self._tail.blames_client()

    def _look(self) -> None:
        """Look for the first token in the events that came; pass comments on, they are a pulse."""
        while (end := first_event_end(self._pending, self._searched)) >= 0:
            event = bytes(self._pending[self._searched : end])
            match sign_of(event):
                case Sign.ABORT:
                    raise BadReply("aborted the request before the first token")
                case Sign.TOKEN:
                    self._begin()
                    return
                case Sign.COMMENT:
                    self._send_comment(event, end)
                case Sign.NOTHING_YET:
                    self._searched = end
        if len(self._pending) > self._held_bytes:
            self._begin()

    def _send_comment(self, comment: bytes, end: int) -> None:
        del self._pending[self._searched : end]
        if not self._client.is_open:
            self._opener.open(None)
        self._client.send(comment)

    def _begin(self) -> None:
        self._has_token = True
        self._searched = 0
        if not self._client.is_open:
            self._opener.open(None)
        self._is_beginning = True
        self._opener.first_byte(bytes(self._pending))

    def _pass_events(self) -> None:
        pending = self._pending
        end = last_event_end(pending, max(0, self._searched - 2))
        if end:
            self._is_torn = False
        elif len(pending) > self._held_bytes:
            self._is_torn = True
            end = len(pending)
        if end:
            is_crlf = pending.endswith(b"\r\n\r\n", 0, end)
            self._ending = b"\r\n\r\n\r\n" if is_crlf else b"\n\n\r\n"
            self._send_pending(end)
        self._searched = len(pending)

    def _send_pending(self, end: int) -> None:
        passed = bytes(self._pending[:end])
        del self._pending[:end]
        self._tail.add(passed)
        self._client.send(passed)

    def _finish(self) -> None:
        """The engine says that this is all: what is still kept back belongs to the reply."""
        if not self._has_token:
            self._begin()
        self._send_pending(len(self._pending))
        self.is_whole = True
        self._client.end()
        if self._is_beginning:
            self._tell_sent()

    def _tell_sent(self) -> None:
        self._is_beginning = False
        self._opener.first_byte_sent()

"""The client's connection, written to straight from the engine's loop, and its failures."""

import asyncio
import os
import socket
import struct
from typing import Final, Protocol

_NO_LINGER: Final = struct.pack("ii", 1, 0)


class Wire(Protocol):
    """Where a reply goes. Nothing but `begin`, `whole` and `end` may wait."""

    async def begin(self) -> None:
        """Before the status line."""

    async def whole(self) -> None:
        """Before a reply in one piece."""

    async def end(self) -> None:
        """After a stream's last token."""

    def send(self, data: bytes) -> None:
        """Bytes that belong to no token: openings, usage, the end."""

    def token(self, data: bytes) -> None:
        """One token's bytes."""

    def cut(self) -> None:
        """Reset the connection: what a client sees when the process dies."""


class SoundWire:
    """Writes without waiting. A reply is bounded by its `max_tokens`, so a slow reader costs a
    bounded buffer, as it does in vLLM."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    async def begin(self) -> None:
        return

    async def whole(self) -> None:
        return

    async def end(self) -> None:
        return

    def send(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    token = send

    def cut(self) -> None:
        handle = self._transport.get_extra_info("socket")
        if handle is not None and handle.fileno() >= 0:
            with socket.socket(fileno=os.dup(handle.fileno())) as raw:
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
        self._transport.abort()


class StallingWire:
    """Falls silent after some tokens (0: sends nothing at all); the connection stays open."""

    def __init__(self, wire: Wire, after_tokens: int) -> None:
        self._wire = wire
        self._left = after_tokens
        self._silent = not after_tokens

    async def begin(self) -> None:
        if self._silent:
            await self.whole()

    async def whole(self) -> None:
        await asyncio.Event().wait()  # ends when the client leaves: the handler is cancelled

    async def end(self) -> None:
        if self._silent:
            await self.whole()

    def send(self, data: bytes) -> None:
        if not self._silent:
            self._wire.send(data)

    def token(self, data: bytes) -> None:
        if not self._silent:
            self._wire.token(data)
            self._left -= 1
            self._silent = not self._left

    def cut(self) -> None:
        self._wire.cut()


class ResettingWire:
    """Resets the connection after some tokens (0: before the status line)."""

    def __init__(self, wire: Wire, after_tokens: int) -> None:
        self._wire = wire
        self._left = after_tokens

    async def begin(self) -> None:
        if not self._left:
            await self.whole()

    async def whole(self) -> None:
        self.cut()
        await asyncio.Event().wait()  # the handler is cancelled as the connection is lost

    async def end(self) -> None:
        return

    def send(self, data: bytes) -> None:
        self._wire.send(data)

    def token(self, data: bytes) -> None:
        if not self._left:
            self.cut()
            return
        self._wire.token(data)
        self._left -= 1

    def cut(self) -> None:
        self._wire.cut()

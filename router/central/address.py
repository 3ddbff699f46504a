"""Where a central index listens."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import urlsplit


class BadAddress(ValueError):
    """Neither tcp://HOST:PORT nor unix:PATH."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where the index listens. `path`: a Unix socket's, else host and port."""

    path: str = ""
    host: str = ""
    port: int = 0

    def __str__(self) -> str:
        name = f"[{self.host}]" if ":" in self.host else self.host
        return f"unix:{self.path}" if self.path else f"tcp://{name}:{self.port}"


def parse_address(text: str) -> Address:
    """BadAddress."""
    if text.startswith("unix:"):
        path = text.removeprefix("unix:").removeprefix("//")
        if path:
            return Address(path=path)
    elif text.startswith("tcp://"):
        try:
            parts = urlsplit(text)
            if parts.hostname and parts.port is not None:
                return Address(host=parts.hostname, port=parts.port)
        except ValueError as exc:
            raise BadAddress(f"{text!r}: {exc}") from exc
    raise BadAddress(f"{text!r} is neither tcp://HOST:PORT nor unix:PATH")

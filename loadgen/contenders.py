"""What is compared: policies over fresh engines, and servers that run already."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from loadgen.stack import Stack, StackOptions, open_stack

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


class Contender(Protocol):
    """One column of the comparison: opens with empty caches, or with none that can match."""

    @property
    def name(self) -> str: ...

    @property
    def is_fresh(self) -> bool:
        """Nothing is cached when it opens, so `--cache cold` has nothing to keep out."""

    def open(self) -> AbstractAsyncContextManager[Stack]: ...


@dataclass(frozen=True, slots=True)
class PolicyContender:
    """A router with this policy over fresh embedded engines."""

    name: str
    options: StackOptions
    is_fresh: bool = True

    def open(self) -> AbstractAsyncContextManager[Stack]:
        return open_stack(self.options, self.name)


@dataclass(frozen=True, slots=True)
class UrlContender:
    """A server that runs already; `--cache cold` keeps its cache out of the figures."""

    name: str
    url: str
    model: str
    tokenize_url: str | None = None
    metrics_urls: tuple[str, ...] = ()
    is_fresh: bool = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[Stack]:
        yield Stack(self.url, self.model, (), self.tokenize_url or self.url, self.metrics_urls)

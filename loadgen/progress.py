"""The live bar. It draws between two answers, at most twice a second: a thread that draws would
fight the event loop for the interpreter, and show up as latency."""

from __future__ import annotations

from collections import deque
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from loadgen.client import Clock
from loadgen.quantiles import percentile
from loadgen.record import Record
from loadgen.runner import NullWatcher, Tally, Watcher

if TYPE_CHECKING:
    from collections.abc import Iterator

EVERY_S: Final = 0.5
RECENT: Final = 100


class BarWatcher:
    """Counts, and the median TTFT of the last 100 answers."""

    def __init__(self, progress: Progress, label: str, planned: int, clock: Clock) -> None:
        self._progress = progress
        self._clock = clock
        self._task = progress.add_task(label, total=planned, status="")
        self._recent: deque[float] = deque(maxlen=RECENT)
        self._in_flight = self._errors = self._done = 0
        self._drawn_at = clock()

    def sent(self) -> None:
        self._in_flight += 1

    def finished(self, record: Record) -> None:
        ttfts = [] if record.ttft_s is None else [record.ttft_s]
        self.add(Tally(0, 1, int(not record.is_ok), ttfts))

    def add(self, progress: Tally) -> None:
        self._in_flight += progress.sent - progress.done
        self._done += progress.done
        self._errors += progress.errors
        self._recent.extend(progress.ttfts)
        if self._clock() - self._drawn_at >= EVERY_S:
            self.draw()

    def draw(self) -> None:
        """Bring the bar up to date now."""
        self._drawn_at = self._clock()
        median = f"{1e3 * percentile(sorted(self._recent), 0.5):.0f} ms" if self._recent else "-"
        status = f"{self._in_flight} open, {self._errors} errors, TTFT {median}"
        self._progress.update(self._task, completed=self._done, status=status)
        self._progress.refresh()


def open_watcher(
    console: Console, label: str, planned: int, clock: Clock
) -> AbstractContextManager[Watcher]:
    """A bar on a terminal, nothing elsewhere."""
    return _bar(console, label, planned, clock) if console.is_terminal else _nothing()


@contextmanager
def _nothing() -> Iterator[Watcher]:
    yield NullWatcher()


@contextmanager
def _bar(console: Console, label: str, planned: int, clock: Clock) -> Iterator[Watcher]:
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[status]}"),
    )
    with Progress(*columns, console=console, auto_refresh=False) as progress:
        watcher = BarWatcher(progress, label, planned, clock)
        yield watcher
        watcher.draw()

"""The live bar."""

import io

from rich.console import Console

from loadgen.progress import open_watcher
from loadgen.record import Record
from loadgen.runner import NullWatcher


class Clock:
    """Moves on by a second each time it is asked."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        self.now += 1.0
        return self.now


def answered(outcome: str = "ok", first_token_s: float | None = 0.25) -> Record:
    return Record(
        number=0,
        session="s",
        turn=0,
        outcome=outcome,
        scheduled_s=0.0,
        sent_s=0.0,
        end_s=1.0,
        first_token_s=first_token_s,
    )


def test_bar_shows_done_open_errors_and_recent_ttft():
    screen = io.StringIO()
    console = Console(file=screen, force_terminal=True, width=120, color_system=None)
    with open_watcher(console, "cache-aware", 4, Clock()) as watcher:
        for _ in range(3):
            watcher.sent()
        watcher.finished(answered())
        watcher.finished(answered("timeout", None))
    last = screen.getvalue()
    assert "cache-aware" in last
    assert "2/4" in last
    assert "1 open, 1 errors, TTFT 250 ms" in last


def test_where_nobody_looks_nothing_is_drawn():
    screen = io.StringIO()
    with open_watcher(Console(file=screen), "run", 4, Clock()) as watcher:
        watcher.sent()
        watcher.finished(answered())
    assert isinstance(watcher, NullWatcher)
    assert screen.getvalue() == ""

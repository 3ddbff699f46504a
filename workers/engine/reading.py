"""Tokens to text, and stop strings, which may span tokens."""

from collections.abc import Sequence

from workers.engine.sequence import Finish


class StopReader:
    """Reads one answer; holds back what may yet turn out to be the start of a stop string."""

    def __init__(
        self, pieces: Sequence[str], stops: Sequence[str], *, keep_stop: bool, min_tokens: int
    ) -> None:
        """`keep_stop`: what stops the answer is part of it. Nothing does before `min_tokens`."""
        self._pieces = pieces
        self._stops = stops
        self._keep_stop = keep_stop
        self._min_tokens = min_tokens
        self._hold = 0 if keep_stop else max(map(len, stops)) - 1
        self._seen = ""
        self._sent = 0
        self._count = 0
        self.stopped_by: str | None = None

    def read(self, token: int, finish: Finish | None) -> tuple[str, Finish | None]:
        """The text that can be passed on now, and whether the answer ends here."""
        self._count += 1
        fresh_from = len(self._seen)
        if finish is not Finish.STOP or self._keep_stop:
            self._seen += self._pieces[token]
        if self._count > self._min_tokens and self._find_stop(fresh_from):
            finish = Finish.STOP
        end = len(self._seen)
        if finish is None:
            end = max(self._sent, end - self._hold)
        text = self._seen[self._sent : end]
        self._sent = end
        return text, finish

    def _find_stop(self, fresh_from: int) -> bool:
        # The first stop string in the request's order wins, not the first in the text (vLLM).
        for stop in self._stops:
            at = self._seen.find(stop, max(0, fresh_from - len(stop) + 1))
            if at >= 0:
                self.stopped_by = stop
                self._seen = self._seen[: at + len(stop) * self._keep_stop]
                return True
        return False


class PlainReader:
    """Reads an answer without stop strings."""

    stopped_by: str | None = None

    def __init__(self, pieces: Sequence[str], *, keep_stop: bool = False) -> None:
        """`keep_stop`: the text of a stop token is part of the answer."""
        self._pieces = pieces
        self._keep_stop = keep_stop

    def read(self, token: int, finish: Finish | None) -> tuple[str, Finish | None]:
        """The token's text; `finish` as it came."""
        if finish is Finish.STOP and not self._keep_stop:
            return "", finish
        return self._pieces[token], finish

"""What was heard of other routers: their reports, and news of what has changed since."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from router.index.told import Told
from router.shared.report import News, Report, decode_report

NEWS_VAGUE_S: Final = 0.02
"""Nearly all news are heard within it."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """Of one router: its last report, when that or news of it were heard, and when news were."""

    report: Report
    at: float
    news_at: float = -math.inf


@dataclass(slots=True)
class Hearing:
    """`told` is given what each says of its load, but not what those of our own `group` say: the
    processes of a host know of each other without it. Who says nothing for `ttl_s` is gone.
    """

    told: Told
    clock: Callable[[], float]
    ttl_s: float
    group: str = ""
    _heard: dict[str, _Heard] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._heard)

    @property
    def elsewhere(self) -> int:
        """How many are not of our group."""
        return sum(self._is_apart(heard.report.group) for heard in self._heard.values())

    @property
    def waits(self) -> bool:
        """Did a prompt wait at one of theirs, by their last reports?"""
        return any(heard.report.waits for heard in self._heard.values())

    @property
    def all_tell_news(self) -> bool:
        return all(heard.report.pushes for heard in self._heard.values())

    @property
    def last_at(self) -> float | None:
        """When one of them was heard last. None: there is nobody."""
        return max((heard.at for heard in self._heard.values()), default=None)

    def reports(self, others: Mapping[str, bytes]) -> None:
        """Those of all. Who has none is gone, unless its news say that it isn't."""
        now = self.clock()
        oldest = now - self.ttl_s
        heard = {i: h for i, h in self._heard.items() if i in others or h.news_at > oldest}
        for router_id, data in others.items():
            report, before = decode_report(data), heard.get(router_id)
            if report is None or (before is not None and report.number <= before.report.number):
                continue  # another router's mistake must not be ours
            news_at = -math.inf if before is None else before.news_at
            heard[router_id] = _Heard(report, now, news_at)
            if self._is_apart(report.group):
                loads = {row.replica_id: row.load for row in report.loads}
                self.told.tell_all(router_id, loads, now, report.number)
        self._heard = heard

    def news(self, news: News) -> None:
        """A router tells of what has changed just now, or that it goes."""
        if news.is_last:
            self._heard.pop(news.router_id, None)
            self.told.keep(self._heard)
            return
        now, before = self.clock(), self._heard.get(news.router_id)
        report = Report(0, (), news.group, pushes=True) if before is None else before.report
        self._heard[news.router_id] = _Heard(report, now, now)
        if self._is_apart(news.group):
            for row in news.loads:
                place = news.router_id, row.replica_id, row.load, now, news.number
                self.told.tell(*place, news_s=NEWS_VAGUE_S)

    def forget_silent(self) -> None:
        """Who was not heard of for long has no load any more."""
        oldest = self.clock() - self.ttl_s
        self._heard = {i: h for i, h in self._heard.items() if h.at > oldest}
        self.told.keep(self._heard)

    def _is_apart(self, group: str) -> bool:
        return not self.group or group != self.group

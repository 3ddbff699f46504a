"""What counts up, kept as plain numbers and put into Prometheus' shape when it is asked for.

A request touches a dozen series; prometheus_client's own objects take a lock for each.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

Labels = tuple[str, ...]


class Tally(Collector):
    """A counter. Only one thread may count; any may collect."""

    def __init__(self, name: str, text: str, *labels: str) -> None:
        self._about = name, text
        self._labels = labels
        self._counts: dict[Labels, float] = {}

    def add(self, labels: Labels, by: float = 1.0) -> None:
        counts = self._counts
        counts[labels] = counts.get(labels, 0.0) + by

    def collect(self) -> Iterator[Metric]:
        family = CounterMetricFamily(*self._about, labels=self._labels)
        for labels, count in self._counts.copy().items():
            family.add_metric(labels, count)
        yield family


class Spread(Collector):
    """A histogram. Only one thread may count; any may collect."""

    def __init__(self, name: str, text: str, bounds: Sequence[float], *labels: str) -> None:
        self._about = name, text
        self._labels = labels
        self._bounds = bounds
        self._names = [*map(floatToGoString, bounds), "+Inf"]
        # per row: how many were in each bucket, and at the end the sum
        self._rows: dict[Labels, list[float]] = {}
        if not labels:
            self._row(())

    def observe(self, labels: Labels, value: float) -> None:
        row = self._rows.get(labels) or self._row(labels)
        row[bisect_left(self._bounds, value)] += 1
        row[-1] += value

    def collect(self) -> Iterator[Metric]:
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        for labels, row in self._rows.copy().items():
            *counts, total = row.copy()
            buckets, below = [], 0.0
            for name, count in zip(self._names, counts, strict=True):
                below += count
                buckets.append((name, below))
            family.add_metric(labels, buckets, total)
            if self._bounds[0] < 0:
                # the library leaves it out with the sum, which would go down
                named = dict(zip(self._labels, labels, strict=True))
                family.add_sample(f"{family.name}_count", named, below)
        yield family

    def _row(self, labels: Labels) -> list[float]:
        row = self._rows[labels] = [0.0] * (len(self._bounds) + 2)
        return row

"""Our counters and histograms are exposed as prometheus_client's own are."""

import threading

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from router.tally import Spread, Tally

BOUNDS = (-1.0, 0.0, 0.5, 2.0)
LABELS = st.sampled_from(["a", "b"])
VALUES = st.floats(-3, 3) | st.sampled_from(BOUNDS)


def exposed(*collectors):
    registry = CollectorRegistry()
    for collector in collectors:
        registry.register(collector)
    text = generate_latest(registry).decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


@given(st.lists(st.tuples(LABELS, st.integers(0, 9))))
def test_counts(added):
    ours = Tally("warmgate_n", "Text.", "model")
    theirs = Counter("warmgate_n", "Text.", ["model"], registry=None)
    for label, by in added:
        ours.add((label,), by)
        theirs.labels(label).inc(by)
    assert exposed(ours) == exposed(theirs)


@given(st.lists(st.tuples(LABELS, VALUES)))
def test_spreads(seen):
    ours = Spread("warmgate_s", "Text.", BOUNDS, "model")
    theirs = Histogram("warmgate_s", "Text.", ["model"], buckets=BOUNDS, registry=None)
    for label, value in seen:
        ours.observe((label,), value)
        theirs.labels(label).observe(value)
    assert exposed(ours) == exposed(theirs)


def test_a_spread_without_labels_is_there_before_anything_is_seen():
    assert exposed(Spread("warmgate_s", "Text.", BOUNDS)) == exposed(
        Histogram("warmgate_s", "Text.", buckets=BOUNDS, registry=None)
    )


def test_a_scrape_may_run_beside_counting():
    tally, spread = Tally("warmgate_n", "Text.", "x"), Spread("warmgate_s", "Text.", BOUNDS, "x")
    stop = threading.Event()
    failures = []

    def scrape():
        while not stop.is_set():
            try:
                exposed(tally, spread)
            except RuntimeError as exc:
                failures.append(exc)
                return

    thread = threading.Thread(target=scrape)
    thread.start()
    for number in range(3000):
        tally.add((str(number),))
        spread.observe((str(number),), 1.0)
    stop.set()
    thread.join(10)
    assert not failures

"""Ten conversations, two replicas, three at a time, no session header: what routing is worth."""

from statistics import fmean

import pytest

from tests.vllm.ab import ALONE, Runs, interleave, p95_by_round, summary
from tests.vllm.conftest import Note
from tests.vllm.stack import Installed, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(2400)]

SEEDS = range(1, 7)
MOST_BELOW_ALONE = 0.02
MOST_ABOVE_SESSION = 1.15


@pytest.fixture(scope="module")
def runs(at: Installed, pair: list[Replica], note: Note) -> Runs:
    told: list[str] = []
    runs = interleave(at, pair, SEEDS, told.append)
    note("conversations", summary(runs))
    return runs


def test_hit_rate_is_that_of_one_replica_alone(runs: Runs):
    ours, alone = (fmean(o.hit_rate for o in runs[name]) for name in ("cache-aware", ALONE))
    assert ours >= alone - MOST_BELOW_ALONE


def test_p95_ttft_is_below_round_robin_in_each_round(runs: Runs):
    ours, blind = (p95_by_round(runs[name]) for name in ("cache-aware", "round-robin"))
    assert len(ours) == 3
    assert all(a < b for a, b in zip(ours, blind, strict=True))


def test_p95_ttft_is_close_to_stickiness_by_header(runs: Runs):
    ours, sticky = (fmean(p95_by_round(runs[name])) for name in ("cache-aware", "session"))
    assert ours <= MOST_ABOVE_SESSION * sticky

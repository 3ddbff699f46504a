"""Several processes' metrics read as those of one, and never count backwards."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from router.gateway.totals import Totals


def exposition(requests, *, in_flight=0, healthy=1, seconds=(1, 2)):
    """What one process says: `seconds`: histogram buckets up to 1 s and in all."""
    return f"""# HELP warmgate_requests_total Requests, "all" of them.
# TYPE warmgate_requests_total counter
warmgate_requests_total{{status="200",model="a\\"b"}} {requests}
# TYPE warmgate_requests_created gauge
warmgate_requests_created 1.7e9
# TYPE warmgate_ttft_seconds histogram
warmgate_ttft_seconds_bucket{{le="1.0"}} {seconds[0]}
warmgate_ttft_seconds_bucket{{le="+Inf"}} {seconds[1]}
warmgate_ttft_seconds_count {seconds[1]}
warmgate_ttft_seconds_sum 2.5
# TYPE warmgate_replica_in_flight gauge
warmgate_replica_in_flight{{replica="r1"}} {in_flight}
# TYPE warmgate_replica_healthy gauge
warmgate_replica_healthy{{replica="r1"}} {healthy}
"""


def read(totals):
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(totals.text())
        for sample in family.samples
    }


@pytest.fixture
def totals():
    return Totals()


def test_what_counts_up_and_what_each_has_a_share_of_is_added_up(totals):
    totals.learn(0, 100, exposition(3, in_flight=2))
    totals.learn(1, 101, exposition(4, in_flight=5, healthy=0))
    got = read(totals)
    assert got["warmgate_requests_total", "200", 'a"b'] == 7
    assert got["warmgate_ttft_seconds_bucket", "1.0"] == 2
    assert got["warmgate_ttft_seconds_count",] == 4
    assert got["warmgate_replica_in_flight", "r1"] == 7
    assert got["warmgate_replica_healthy", "r1"] == 1
    assert not any("created" in key[0] for key in got)


def test_a_scrape_replaces_the_one_before(totals):
    totals.learn(0, 100, exposition(3))
    totals.learn(0, 100, exposition(9))
    assert read(totals)["warmgate_requests_total", "200", 'a"b'] == 9


def test_what_ended_processes_had_counted_stays_and_their_load_does_not(totals):
    totals.learn(0, 100, exposition(3, in_flight=2))
    totals.learn(0, 200, exposition(1, in_flight=1))
    totals.learn(0, 300, exposition(1, in_flight=1))
    got = read(totals)
    assert got["warmgate_requests_total", "200", 'a"b'] == 5
    assert got["warmgate_ttft_seconds_sum",] == 7.5
    assert got["warmgate_replica_in_flight", "r1"] == 1


def test_a_series_that_only_an_ended_process_had_is_still_there(totals):
    totals.learn(0, 100, exposition(3))
    totals.learn(0, 200, "# TYPE warmgate_requests_total counter\n")
    assert read(totals)["warmgate_requests_total", "200", 'a"b'] == 3

"""What real engines say at /metrics is read; the files are captures."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.replicas.report import EngineReport, read_report

METRICS = Path(__file__).parents[2] / "data" / "metrics"


@pytest.mark.parametrize(
    ("capture", "rank", "report"),
    [
        ("vllm-0.32", 0, EngineReport(1536, 40 / 47, 5, 1)),
        ("vllm-0.32-two-ranks", 1, EngineReport(4096, 0.0, 0, 0)),
        ("sglang-0.5.23", 0, EngineReport(8192, 0.03, 0, 0)),
        ("llamacpp-b11549", 0, EngineReport(None, None, 0, 0)),
    ],
)
def test_each_engines_own_figures_are_read(capture, rank, report):
    assert read_report((METRICS / f"{capture}.txt").read_text(), rank) == report


def test_an_old_vllm_has_blocks_of_all_ranks_but_no_tokens():
    text = (METRICS / "vllm-0.32-two-ranks.txt").read_text()
    old = text.replace("kv_cache_size_tokens", "something_else")
    assert read_report(old).cache_tokens == 256 * 32 // 2


@given(st.text() | st.from_regex(r"vllm:num_requests_running(\{engine=\"\w*\"\})? \S+\n"))
def test_nothing_that_an_engine_writes_is_an_error(text):
    report = read_report(text)
    assert report.running is None or report.running >= 0

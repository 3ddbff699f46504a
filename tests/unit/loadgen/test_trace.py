"""Replay of Mooncake-format traces."""

from pathlib import Path

import pytest

from loadgen.arrival import Arrivals
from loadgen.text import Prose
from loadgen.workload.trace import (
    Trace,
    TraceError,
    TraceFile,
    TraceOptions,
    TraceRow,
    read_trace,
)

EXCERPT = Path(__file__).parents[2] / "data" / "traces" / "mooncake_conversation_300.jsonl"

ROWS = [
    TraceRow(timestamp=3000, input_length=1100, output_length=500, hash_ids=[0, 1, 2]),
    TraceRow(timestamp=3000, input_length=1024, output_length=4, hash_ids=[0, 1]),
    TraceRow(timestamp=9000, input_length=1536, output_length=90, hash_ids=[0, 7, 2]),
]


def replay(rows=ROWS, salt: str = "", **options) -> Trace:
    file = TraceFile(list(rows), "mooncake", 512)
    return Trace(file, TraceOptions(path="trace.jsonl", **options), Prose(seed=1), salt)


def prompts(trace: Trace) -> list[list[str]]:
    return [s.turns[0].messages[0].content.split() for s in trace.sessions()]


def common(a: list[str], b: list[str]) -> int:
    return next(
        (n for n, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(map(len, (a, b)))
    )


def test_prompts_have_the_trace_s_lengths():
    assert [len(prompt) for prompt in prompts(replay())] == [1100, 1024, 1536]


def test_equal_ids_give_equal_text_and_sharing_ends_with_the_first_other_id():
    first, second, third = prompts(replay())
    assert common(first, second) == 1024
    assert common(first, third) == 512


def test_scale_shrinks_prompts_answers_and_what_they_share_alike():
    trace = replay(scale=0.1)
    first, second, third = prompts(trace)
    assert len(first) == pytest.approx(110, abs=2)
    assert common(first, second) == pytest.approx(102, abs=2)
    assert common(first, third) == pytest.approx(51, abs=1)
    assert [s.turns[0].max_tokens for s in trace.sessions()] == [50, 1, 9]


def test_rows_are_due_at_their_times_from_the_first_one_sped_up():
    assert [s.start_s for s in replay().sessions()] == [0.0, 0.0, 6.0]
    assert [s.start_s for s in replay(speed_up=4.0).sessions()] == [0.0, 0.0, 1.5]


def test_rate_draws_new_times_for_the_same_prompts():
    drawn = replay(arrivals=Arrivals(rate_per_s=2.0, kind="constant"))
    assert [s.start_s for s in drawn.sessions()] == [0.0, 0.5, 1.0]
    assert prompts(drawn) == prompts(replay())


def test_too_long_rows_are_left_out_and_counted():
    trace = replay(scale=0.5, max_input_tokens=600)
    assert trace.requests == len(list(trace.sessions())) == 2
    assert trace.parameters["left_out"] == 1


def test_number_of_requests_takes_the_first_rows():
    assert replay(requests=2).requests == 2


def test_published_rows_share_as_their_ids_say():
    rows = read_trace(EXCERPT).rows
    assert len(rows) == 300
    texts = prompts(replay(rows=rows[:40], scale=0.1))
    # All of this trace's prompts share the first block.
    assert {tuple(text[:51]) for text in texts} == {tuple(texts[0][:51])}
    expected = sum(row.input_length for row in rows[:40]) / 10
    assert sum(map(len, texts)) == pytest.approx(expected, rel=0.01)


@pytest.mark.parametrize(
    ("content", "message"),
    [("", "no rows"), ('{"timestamp": 1}\n', ":1: "), ('\n{"a"\n', ":2: ")],
)
def test_bad_file_names_the_line(tmp_path, content, message):
    path = tmp_path / "trace.jsonl"
    path.write_text(content)
    with pytest.raises(TraceError, match=message):
        read_trace(path)


def test_missing_file_is_said_so(tmp_path):
    with pytest.raises(TraceError, match="No such file"):
        read_trace(tmp_path / "none.jsonl")

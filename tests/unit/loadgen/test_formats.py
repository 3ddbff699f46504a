"""Traces of every format that is read."""

import gzip
import json

import pytest

from loadgen.workload.formats import TraceError, TraceRow, read_trace

MOONCAKE = '{"timestamp": 500, "input_length": 600, "output_length": 5, "hash_ids": [1, 2]}\n'
BAILIAN = (
    '{"chat_id": 7, "parent_chat_id": -1, "timestamp": 0.5, "input_length": 20,'
    ' "output_length": 5, "type": "text", "turn": 1, "hash_ids": [1, 2]}\n'
)
AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:17:03.9799600,4808,10
2023-11-16 18:17:04.0319600,3180,8
"""
BURST = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
"""
LOGGED = (
    "2026-01-01 00:00:00,000 INFO router.serve ready\n"
    '2026-01-01 00:00:01,000 INFO router.access {"request_id": "a", "started": 2.0,'
    ' "prompt_tokens": 30, "completion_tokens": 4}\n'
    '2026-01-01 00:00:01,000 INFO router.access {"request_id": "b", "started": 3.0,'
    ' "prompt_tokens": null}\n'
)


def dynamo(at_ms: int, size: int = 16) -> str:
    replay = {"trace_block_size": size, "input_length": 20, "input_sequence_hashes": [9, 8]}
    request = {"request_received_ms": at_ms, "output_tokens": 3, "replay": replay}
    record = {"schema": "dynamo.request.trace.v1", "event_type": "request_end", "request": request}
    return json.dumps({"timestamp": 1, "event": record}) + "\n"


def read(tmp_path, text: str, name: str = "trace", **options):
    path = tmp_path / name
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    return read_trace(path, **options)


def test_mooncake_is_in_milliseconds_and_blocks_of_512(tmp_path):
    found = read(tmp_path, MOONCAKE)
    assert (found.format, found.block_tokens) == ("mooncake", 512)
    assert found.rows == [TraceRow(500, 600, 5, [1, 2])]


def test_bailian_is_in_seconds_and_blocks_of_16(tmp_path):
    found = read(tmp_path, BAILIAN)
    assert (found.format, found.block_tokens) == ("bailian", 16)
    assert found.rows == [TraceRow(500, 20, 5, [1, 2])]


def test_dynamo_brings_its_block_size_and_may_be_wrapped_and_packed(tmp_path):
    tool = json.dumps({"schema": "dynamo.request.trace.v1", "event_type": "tool_end"}) + "\n"
    found = read(tmp_path, dynamo(900) + tool + dynamo(400), "trace.jsonl.gz")
    assert (found.format, found.block_tokens) == ("dynamo", 16)
    assert [row.timestamp for row in found.rows] == [400, 900]
    assert found.rows[0].hash_ids == [9, 8]


def test_dynamo_with_two_block_sizes_is_refused(tmp_path):
    with pytest.raises(TraceError, match="different sizes"):
        read(tmp_path, dynamo(1) + dynamo(2, size=64))


def test_azure_has_times_to_a_ten_millionth_and_no_prefixes(tmp_path):
    found = read(tmp_path, AZURE)
    first, second = found.rows
    assert second.timestamp - first.timestamp == pytest.approx(52, abs=0.01)
    assert (first.input_length, first.output_length, first.hash_ids) == (4808, 10, [])


def test_burstgpt_is_read_by_its_heads(tmp_path):
    found = read(tmp_path, BURST)
    assert [(row.timestamp, row.input_length) for row in found.rows] == [(5000, 472), (45000, 1087)]


def test_own_access_log_gives_what_was_tokenized(tmp_path):
    found = read(tmp_path, LOGGED, format="access-log")
    assert found.rows == [TraceRow(2000, 30, 4, [])]


def test_bad_cell_names_its_line(tmp_path):
    with pytest.raises(TraceError, match=":3: "):
        read(tmp_path, AZURE.replace("3180", "many"))

"""Real recordings of SGLang: every frame decodes, and the index predicts what was reused."""

import time

import pytest

from router.blocks import (
    AllBlocksCleared,
    BlockStored,
    as_tokens,
    decode_batch,
    hash_blocks,
    prefix_seed,
)
from router.index import MemoryIndex
from tests.support.captures import SGLANG, apply_batch, lines, sglang_payload

PAGE = 16
EVENT_FILES = sorted(SGLANG.glob("events*.jsonl"))
REQUESTS = lines(SGLANG / "requests.jsonl")
RELEASES = lines(SGLANG / "wire_by_version.jsonl")

DIFFERING = {
    "16_chat_extra_key": "events of the default format don't name the extra key",
}


def test_the_match_of_every_request_is_what_the_engine_reused():
    outcomes = {request["name"]: outcome(request) for request in REQUESTS}
    assert len(outcomes) == 9
    differing = {name for name, (predicted, cached) in outcomes.items() if predicted != cached}
    assert differing == set(DIFFERING)


def outcome(request) -> tuple[int, int]:
    index = MemoryIndex(clock=time.monotonic)
    for line in lines(SGLANG / "events.jsonl"):
        if line["seq"] <= request["after_seq"]:
            apply_batch(index, "a", decode_batch(sglang_payload(line)))
    seed = prefix_seed(request["cache_salt"])
    matched = index.match(hash_blocks(as_tokens(request["token_ids"]), PAGE, seed))
    full = (request["prompt_tokens"] - 1) // PAGE
    return min(matched.get("a", 0), full), request["cached_tokens"] // PAGE


@pytest.mark.parametrize("path", EVENT_FILES, ids=lambda path: path.stem)
def test_every_recorded_frame_decodes(path):
    for line in lines(path):
        batch = decode_batch(sglang_payload(line))
        ts, events, rank = line["decoded"]
        assert (batch.ts, batch.data_parallel_rank) == (ts, rank)
        assert [type(event).__name__ for event in batch.events] == [e["type"] for e in events]
        for event, raw in zip(batch.events, events, strict=True):
            if not isinstance(event, AllBlocksCleared):
                assert list(event.block_hashes) == raw["block_hashes"]


def test_an_evicted_leaf_is_gone_whole():
    index = MemoryIndex(clock=time.monotonic)
    held = []
    for line in lines(SGLANG / "events.jsonl"):
        apply_batch(index, "a", decode_batch(sglang_payload(line)))
        held.append(len(index))
    assert held[-7:] == [100, 200, 300, 400, 500, 500, 500]
    assert index.stats.removed_unknown == 0


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_every_release_is_understood(release):
    batch = decode_batch(bytes.fromhex(release["hex"]))
    assert batch.unknown_events == 0
    assert len(batch.events) == len(release["decoded"][1])
    first = batch.events[0]
    assert isinstance(first, BlockStored)
    assert (first.block_hashes, list(first.token_ids), first.block_size) == (
        (11, 22),
        [1, 2, 3, 4],
        2,
    )
    assert first.parent_block_hash is None

"""Real recordings of vLLM: every frame decodes, and the index predicts what the engine reused."""

import base64
import json
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from router.blocks import AllBlocksCleared, BlockStored, decode_batch
from router.blocks.wire import decode_frame, decode_replay
from router.index import MemoryIndex
from tests.support.captures import VLLM, VllmReplay, apply_batch, lines, parts_of

FORMATS = VLLM / "20-format-by-version.jsonl"
CAPTURES = sorted(path for path in VLLM.glob("*.jsonl") if path != FORMATS)
TRANSCODED = sorted((VLLM / "transcoded").glob("*.jsonl"))
RELEASES = lines(FORMATS)

AT_ONCE = "sent at the same moment as 1: the hit is there before the event is out"
DIFFERING = {
    ("06-misc", 1): "n=2: the second sequence hits the blocks of the first",
    ("06-misc", 2): "prompt_logprobs: the engine does not read its cache",
    ("07-reset", 3): "vLLM publishes a reset only with the next request's step",
    ("09-dup", 2): AT_ONCE,
    ("09-dup", 3): AT_ONCE,
    ("09-dup", 4): AT_ONCE,
    ("17-swa-groups", 3): "the sliding-window group, which the events don't describe, had no hit",
}
SALT_UNSEEN = (3, 7)
"""Of 04: salted prompts sent again; what they stored the first time passed for unsalted."""


def new_index() -> MemoryIndex:
    return MemoryIndex(clock=time.monotonic)


def differing(path: Path, capture: list[dict[str, Any]]) -> Iterator[tuple[str, int]]:
    name = path.name.partition(".")[0]
    for request_id, predicted, reported in VllmReplay(new_index(), capture).outcomes():
        if predicted != reported:
            yield name, request_id


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.stem)
def test_the_match_of_every_request_is_what_the_engine_reused(path):
    expected = {key for key in DIFFERING if key[0] == path.stem}
    assert set(differing(path, lines(path))) == expected


def test_the_recordings_hold_as_many_requests_as_we_believe():
    outcomes = [o for path in CAPTURES for o in VllmReplay(new_index(), lines(path)).outcomes()]
    assert len(outcomes) == 109


@pytest.mark.parametrize("path", CAPTURES + TRANSCODED, ids=lambda path: path.stem)
def test_every_recorded_frame_decodes(path):
    for line in lines(path):
        if line["kind"] == "event":
            frame = decode_frame(parts_of(line))
            batch = decode_batch(frame.payload)
            assert frame.topic == "kv-events"
            assert batch.events
            assert batch.unknown_events == 0


@pytest.mark.parametrize("path", TRANSCODED, ids=lambda path: path.stem)
def test_older_layouts_predict_the_same(path):
    """Salts are published since 0.17; before, salted blocks look like any others."""
    name, _, release = path.stem.partition(".as-")
    original = lines(VLLM / f"{name}.jsonl")
    older = iter([line for line in lines(path) if line["kind"] == "event"])
    capture = [next(older) if line["kind"] == "event" else line for line in original]
    expected = {key for key in DIFFERING if key[0] == name}
    if name == "04-salt" and release in ("0.9.0", "0.10.2"):
        expected = {(name, request_id) for request_id in SALT_UNSEEN}
    assert {(name, key[1]) for key in differing(path, capture)} == expected


def replay_lines() -> list[dict[str, Any]]:
    return [line for line in lines(VLLM / "10-replay.jsonl") if line["kind"] == "replay"]


def test_recorded_replays_decode_and_end():
    for start in (0, 2, 10_000):
        answer = [
            decode_replay(parts_of(line))
            for line in replay_lines()
            if line["socket"] == "dealer" and line["start"] == start
        ]
        assert answer.pop() is None
        seqs = [frame.seq for frame in answer if frame is not None]
        assert seqs == list(range(start, start + len(seqs)))
        assert all(frame.topic == "kv-events" for frame in answer if frame is not None)


def test_a_replay_from_the_start_leaves_the_index_that_live_events_leave():
    live, replayed = new_index(), new_index()
    for line in lines(VLLM / "10-replay.jsonl"):
        if line["kind"] == "replay":
            break
        if line["kind"] == "event":
            apply_batch(live, "a", decode_batch(decode_frame(parts_of(line)).payload))
    for line in replay_lines():
        frame = decode_replay(parts_of(line))
        if line["socket"] == "dealer" and line["start"] == 0 and frame is not None:
            apply_batch(replayed, "a", decode_batch(frame.payload))
    assert replayed.blocks_of("a") >= live.blocks_of("a") != set()


def test_a_window_group_stores_nothing_and_removes_nothing_of_the_full_group():
    index = new_index()
    for line in lines(VLLM / "17-swa-groups.jsonl"):
        if line["kind"] == "event":
            apply_batch(index, "a", decode_batch(decode_frame(parts_of(line)).payload))
    assert index.stats.partial_groups == 44
    assert index.stats.removed_unknown == 12
    assert len(index) == index.stats.stored - index.stats.removed


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_every_release_is_understood(release):
    batch = decode_batch(bytes.fromhex(release["payload"]))
    raw_ts, raw_events, *raw_rank = release["decoded"]
    assert (batch.ts, batch.unknown_events) == (raw_ts, 0)
    assert batch.data_parallel_rank == (raw_rank[0] if raw_rank else None)
    assert len(batch.events) == len(raw_events)
    for event, raw in zip(batch.events, raw_events, strict=True):
        assert as_json(event, release) == described(raw, release)


@pytest.mark.parametrize("release", RELEASES, ids=lambda release: release["version"])
def test_every_release_without_a_rank_is_understood(release):
    batch = decode_batch(bytes.fromhex(release["payload_rank_unset"]))
    assert batch.events == (AllBlocksCleared(),)
    assert batch.data_parallel_rank is None


def as_json(event: Any, release: dict[str, Any]) -> dict[str, Any]:
    fields = {"type": type(event).__name__}
    for name in field_names(fields["type"], release):
        fields[name] = getattr(event, name)
    plain: dict[str, Any] = json.loads(json.dumps(fields, default=as_plain))
    return plain


def as_plain(value: Any) -> str | list[int]:
    if isinstance(value, array):
        return list(value)
    return base64.b64encode(value).decode()


def described(raw: Any, release: dict[str, Any]) -> dict[str, Any]:
    if isinstance(raw, dict):
        tag, values = raw["type"], raw
    else:
        tag = raw[0]
        values = dict(zip(field_names(tag, release), raw[1:], strict=True))
    return {"type": tag} | {name: values.get(name) for name in field_names(tag, release)}


def field_names(tag: str, release: dict[str, Any]) -> list[str]:
    names = {"BlockStored": "stored_fields", "BlockRemoved": "removed_fields"}
    return list(release[names[tag]]) if tag in names else []


def test_there_are_36_releases_in_both_forms():
    assert len(RELEASES) == 36
    assert {release["event_form"] for release in RELEASES} == {"array", "map"}
    stored = {len(release["stored_fields"]) for release in RELEASES}
    assert max(stored) == len(BlockStored.__struct_fields__)

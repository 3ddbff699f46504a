"""Fed with what a real vLLM was asked, the engine's cache does what the real one did, event by
event: what is stored, under which parent, what is evicted and in which order, what is hit."""

import json
from pathlib import Path

import pytest

from router.blocks import AllBlocksCleared, BlockRemoved, BlockStored, decode_batch
from router.blocks.wire import decode_frame
from tests.support.engine import Follower, VirtualClock, core, eventually, sequence, stepping
from workers.engine.sequence import Adapter

DATA = Path(__file__).parents[2] / "data" / "vllm"
BLOCK_SIZE = 32
RECORDINGS = {
    "01-basic": 1456,
    "02-shared": 1456,
    "03-multiturn": 1456,
    "04-salt": 1456,
    "08-evict": 48,
    "09-dup": 48,
    "15-lora": 1456,
}
"""Recording → blocks of the engine that was recorded."""


def requests_of(recording):
    """Each request as a sequence that answers as the real model did, and its cached tokens."""
    prompts, bodies = {}, {}
    for line in recording:
        if line["kind"] == "tokens":
            prompts[line["id"]] = line["token_ids"]
        elif line["kind"] == "request":
            bodies[line["id"]] = line["body"]
        elif line["kind"] == "response" and line.get("choices"):
            body, answer = bodies[line["id"]], line["choices"][0]["token_ids"]
            model = body["model"]
            adapter = Adapter(model, 1 + "ab".index(model[-1])) if "adapter" in model else None
            yield (
                sequence(
                    prompts[line["id"]],
                    len(answer),
                    block_size=BLOCK_SIZE,
                    salt=body.get("cache_salt"),
                    adapter=adapter,
                    answer=answer,
                ),
                line["usage"]["prompt_tokens_details"]["cached_tokens"],
            )


def batches_of(recording):
    """The recorded batches without resets, which came before each recording began."""
    for line in recording:
        if line["kind"] == "event":
            events = decode_batch(
                decode_frame([bytes.fromhex(part) for part in line["frames"]]).payload
            ).events
            if rest := [event for event in events if not isinstance(event, AllBlocksCleared)]:
                yield rest


class Renamer:
    """Engine hashes are opaque: compare them by the order in which they first appear."""

    def __init__(self):
        self._names = {}

    def __call__(self, event):
        if isinstance(event, BlockRemoved):
            return ("removed", self._all(event), event.medium, event.group_idx)
        assert isinstance(event, BlockStored)
        parent = event.parent_block_hash
        return (
            "stored",
            parent if parent is None else self._name(parent),
            self._all(event),
            list(event.token_ids),
            event.block_size,
            [list(keys) if keys else None for keys in event.extra_keys or ()],
            (event.lora_id, event.lora_name, event.medium),
            (event.group_idx, event.kv_cache_spec_kind, event.session_id),
        )

    def _all(self, event):
        return [self._name(value) for value in event.block_hashes]

    def _name(self, value):
        return self._names.setdefault(value, len(self._names))


@pytest.mark.parametrize("name", RECORDINGS)
async def test_the_events_are_those_of_the_real_engine(name):
    recording = [json.loads(line) for line in (DATA / f"{name}.jsonl").read_text().splitlines()]
    follower = Follower()
    engine_core = core(
        follower,
        VirtualClock(),
        num_blocks=RECORDINGS[name],
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=2048,
    )
    hits = []
    async with stepping(engine_core):
        for one, cached in requests_of(recording):
            engine_core.submit(one)
            await eventually(lambda one=one: one.finish, "the answer")
            hits.append((one.hit_tokens, cached))
    assert hits
    assert [ours for ours, _ in hits] == [theirs for _, theirs in hits]
    rename_ours, rename_theirs = Renamer(), Renamer()
    ours = [[rename_ours(event) for event in batch] for batch in follower.batches]
    theirs = [[rename_theirs(event) for event in batch] for batch in batches_of(recording)]
    assert ours == theirs

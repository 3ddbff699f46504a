"""Recordings of real engines (tests/data), and their replay through an index."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack

from router.blocks import AllBlocksCleared, BlockStored, EventBatch, as_tokens, decode_batch
from router.blocks.hashing import hash_blocks, prefix_seed
from router.blocks.wire import decode_frame
from router.index import PrefixIndex

DATA = Path(__file__).parents[1] / "data"
VLLM = DATA / "vllm"
SGLANG = DATA / "sglang"
BASE_MODEL = "smollm2-135m"
VLLM_BLOCK_SIZE = 32


def lines(path: Path) -> list[dict[str, Any]]:
    """The recording's lines, in order of time."""
    return [json.loads(line) for line in path.read_text().splitlines()]


def parts_of(line: dict[str, Any]) -> list[bytes]:
    """The message parts of a line that holds frames."""
    return [bytes.fromhex(part) for part in line["frames"]]


def sglang_payload(line: dict[str, Any]) -> bytes:
    """The payload as it was sent; long ones were cut when recorded, and are packed anew."""
    raw: str = line["payload_hex"]
    if not raw.endswith("..."):
        return bytes.fromhex(raw)
    packed: bytes = msgpack.packb(line["decoded"])
    return packed


def apply_batch(index: PrefixIndex, replica_id: str, batch: EventBatch) -> None:
    for event in batch.events:
        if isinstance(event, AllBlocksCleared):
            index.clear(replica_id)
        elif isinstance(event, BlockStored):
            index.store(replica_id, event)
        else:
            index.remove(replica_id, event)


class VllmReplay:
    """Predicts, at the moment of each recorded request, how many blocks of its prompt will hit.

    Replicas are named by rank: "0", or "0" and "1" in the recording of two.
    """

    def __init__(self, index: PrefixIndex, capture: list[dict[str, Any]]) -> None:
        self._index = index
        self._capture = capture
        self._prompts: dict[int, list[int]] = {}
        self._predicted: dict[int, int] = {}

    def outcomes(self) -> Iterator[tuple[int, int, int]]:
        """(request id, predicted blocks, reported blocks) of every request with a usage."""
        for line in self._capture:
            match line["kind"]:
                case "event":
                    frame = decode_frame(parts_of(line))
                    replica_id = str(line.get("publisher", 0))
                    apply_batch(self._index, replica_id, decode_batch(frame.payload))
                case "tokens":
                    self._prompts[line["id"]] = line["token_ids"]
                case "request" if line["id"] in self._prompts:
                    self._predicted[line["id"]] = self._predict(line)
                case "response" if line["id"] in self._predicted and line.get("usage"):
                    cached = line["usage"]["prompt_tokens_details"]["cached_tokens"]
                    predicted = self._predicted[line["id"]]
                    yield line["id"], predicted, cached // VLLM_BLOCK_SIZE

    def _predict(self, request: dict[str, Any]) -> int:
        body, ids = request["body"], self._prompts[request["id"]]
        adapter = body["model"] if body["model"].startswith("adapter-") else None
        seed = prefix_seed(body.get("cache_salt"), adapter)
        matched = self._index.match(hash_blocks(as_tokens(ids), VLLM_BLOCK_SIZE, seed))
        rank = request.get("headers", {}).get("X-data-parallel-rank")
        blocks = max(matched.values(), default=0) if rank is None else matched.get(rank, 0)
        return min(blocks, (len(ids) - 1) // VLLM_BLOCK_SIZE)  # the last token is always computed

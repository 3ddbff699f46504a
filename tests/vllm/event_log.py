"""What each replica says it holds and when it said so: the events, read independently."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

import zmq

from router.blocks.events import AllBlocksCleared, BlockRemoved, BlockStored, Event
from router.blocks.hashing import BlockHash, Hashes, as_tokens, hash_blocks, prefix_seed
from router.blocks.wire import decode_batch, decode_frame

_POLL_MS: Final = 100


class EventLog:
    """Blocks of one replica by our hash, each with the times at which its copies were announced.

    A second reading of the events, far simpler than the index: it forgets nothing it was not told
    to, and starts with an empty cache.
    """

    def __init__(self) -> None:
        self.clearings = 0
        self._lock = threading.Lock()
        self._ours: dict[Any, BlockHash] = {}
        self._stored_at: dict[BlockHash, list[float]] = {}

    def leading_blocks(self, prefix: Sequence[BlockHash], at: float) -> int:
        """How many blocks of a prefix had been announced at a time (`time.monotonic()`)."""
        with self._lock:
            for count, block in enumerate(prefix):
                if not any(stored_at <= at for stored_at in self._stored_at.get(block, ())):
                    return count
            return len(prefix)

    def take(self, payload: bytes, at: float) -> None:
        """Read one batch that arrived at a time."""
        with self._lock:
            for event in decode_batch(payload).events:
                self._apply(event, at)

    def _apply(self, event: Event, at: float) -> None:
        match event:
            case BlockStored():
                for theirs, ours in zip(event.block_hashes, self._hashes(event), strict=True):
                    self._ours[theirs] = ours
                    self._stored_at.setdefault(ours, []).append(at)
            case BlockRemoved():
                for theirs in event.block_hashes:
                    self._stored_at[self._ours[theirs]].pop()
            case AllBlocksCleared():
                self.clearings += 1
                self._stored_at.clear()

    def _hashes(self, event: BlockStored) -> Hashes:
        if event.parent_block_hash is None:
            first = (event.extra_keys or [None])[0]
            seed = prefix_seed(first[0]) if first else prefix_seed()
        else:
            seed = self._ours[event.parent_block_hash]
        return hash_blocks(as_tokens(event.token_ids), event.block_size, seed)


@contextmanager
def following(events_url: str) -> Iterator[EventLog]:
    """A log that a thread keeps, until the block ends."""
    log, stopped = EventLog(), threading.Event()

    def follow() -> None:
        context = zmq.Context()
        socket = context.socket(zmq.SUB)
        socket.setsockopt(zmq.RCVHWM, 0)
        socket.subscribe(b"")
        socket.connect(events_url)
        while not stopped.is_set():
            if socket.poll(_POLL_MS):
                parts = socket.recv_multipart()
                log.take(decode_frame(parts).payload, time.monotonic())
        context.destroy(linger=0)

    thread = threading.Thread(target=follow)
    thread.start()
    try:
        yield log
    finally:
        stopped.set()
        thread.join()

"""Where a stored block's chain begins: salt, adapter and multimodal items, read from the event.

`extra_keys` of an event have the bare form: for each block a list (or nil) of the adapter's name
first, then multimodal items as (id, offset), then, in a prompt's first block alone, the salt. A
string can thus be an adapter or a salt; `lora_name` tells which.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

from router.blocks import (
    BlockStored,
    Hashes,
    as_tokens,
    hash_blocks,
    item_seed,
    prefix_seed,
)
from router.blocks.hashing import TYPE_CODE


def root_seed(event: BlockStored) -> int:
    """The seed of a prompt's first block, for an event without a parent."""
    return prefix_seed(_salt(event), _adapter(event))


def chain(event: BlockStored, seed: int) -> Hashes | None:
    """Our hashes of the event's blocks; None if its tokens don't fill exactly those blocks."""
    if event.block_size < 1 or len(event.token_ids) != len(event.block_hashes) * event.block_size:
        return None
    tokens = event.token_ids
    if not (isinstance(tokens, array) and tokens.typecode == TYPE_CODE):
        try:
            tokens = as_tokens(tokens)
        except (TypeError, OverflowError):  # EAGLE trees of SGLang publish pairs of ids
            return None
    return hash_blocks(tokens, event.block_size, seed, item_seeds(event))


def item_seeds(event: BlockStored) -> dict[int, int] | None:
    """Block number in the event → `item_seed` of the tuple of what the block holds beside tokens.

    A multimodal item is the tuple (id, offset). None if no block holds anything: the usual case.
    """
    if not event.extra_keys or not any(event.extra_keys):
        return None
    seeds = {}
    for number in range(len(event.extra_keys)):
        items = _beside_tokens(event, number)
        if _is_prompt_start(event, number):
            items = _without_salt(items)
        if items:
            seeds[number] = item_seed(tuple(_hashable(item) for item in items))
    return seeds or None


def _salt(event: BlockStored) -> str | None:
    texts = [item for item in _beside_tokens(event, 0) if isinstance(item, str)]
    return texts[0] if texts else None


def _adapter(event: BlockStored) -> str | None:
    name: object = event.lora_name
    if isinstance(name, str):
        return name
    # Before names were published (vLLM 0.14) there is only the engine's own number, and other
    # engines may put something else in the name's place. No request can ask for that, so such
    # blocks match nothing; but they must not pass for the base model's.
    unnamed = event.lora_id if name is None else name
    return None if unnamed is None else f"\0unnamed={unnamed!r}"


def _beside_tokens(event: BlockStored, number: int) -> Sequence[Any]:
    keys = event.extra_keys
    entry = keys[number] if keys and number < len(keys) else None
    if not entry:
        return ()
    is_adapter_first = event.lora_name is not None and entry[0] == event.lora_name
    return entry[1:] if is_adapter_first else entry


def _is_prompt_start(event: BlockStored, number: int) -> bool:
    return number == 0 and event.parent_block_hash is None


def _without_salt(items: Sequence[Any]) -> list[Any]:
    rest = list(items)
    salt = next((item for item in rest if isinstance(item, str)), None)
    if salt is not None:
        rest.remove(salt)
    return rest


def _hashable(item: Any) -> Any:
    return tuple(item) if isinstance(item, list) else item

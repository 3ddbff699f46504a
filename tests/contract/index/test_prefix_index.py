"""What every `PrefixIndex` must do. Most rows are failures that other routers have had."""

from collections.abc import Callable
from typing import Any

import pytest

from router.index import PrefixIndex
from tests.support.events import prefix, removed, stored
from tests.support.indexes import MAKERS

TOKENS = list(range(16))  # four blocks


@pytest.fixture(params=list(MAKERS.values()), ids=list(MAKERS))
def index(request: pytest.FixtureRequest) -> PrefixIndex:
    make: Callable[..., PrefixIndex] = request.param
    return make(clock=lambda: 0.0)


def test_a_stored_event_of_several_blocks_chains_inside_the_event(index):
    index.store("a", stored([1, 2, 3, 4], TOKENS))
    assert index.match(prefix(TOKENS)) == {"a": 4}
    assert index.match(prefix(TOKENS[4:])) == {}


def test_blocks_continue_from_their_parent(index):
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([3, 4], TOKENS[8:], parent=2))
    assert index.match(prefix(TOKENS)) == {"a": 4}


def test_removal_from_one_replica_leaves_the_other(index):
    index.store("a", stored([1, 2, 3, 4], TOKENS))
    index.store("b", stored([1, 2, 3, 4], TOKENS))
    index.remove("a", removed(4, 3))
    assert index.match(prefix(TOKENS)) == {"a": 2, "b": 4}


def test_a_block_stored_twice_is_held_until_it_is_removed_twice(index):
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([2], TOKENS[4:8], parent=1))
    index.remove("a", removed(2))
    assert index.match(prefix(TOKENS)) == {"a": 2}
    index.remove("a", removed(2))
    assert index.match(prefix(TOKENS)) == {"a": 1}


def test_a_block_with_a_copy_left_takes_children_whoever_has_asked_since_the_other_went(index):
    index.store("a", stored([1], TOKENS[:4]))
    index.store("a", stored([1], TOKENS[:4]))
    index.remove("a", removed(1))
    index.store("a", stored([2], TOKENS[4:8], parent=1))
    assert index.match(prefix(TOKENS)) == {"a": 2}


def test_a_block_whose_last_copy_has_just_gone_takes_no_children(index):
    index.store("a", stored([1], TOKENS[:4]))
    index.store("a", stored([1], TOKENS[:4]))
    index.remove("a", removed(1, 1))
    index.store("a", stored([2], TOKENS[4:8], parent=1))
    assert index.match(prefix(TOKENS)) == {}


def test_full_re_reports_do_not_inflate_the_count_of_copies(index):
    index.expect_reused("a")
    index.store("a", stored([1, 2], TOKENS[:8]))
    for _ in range(3):
        index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([3], TOKENS[8:12], parent=2))
    index.store("a", stored([3], TOKENS[8:12], parent=2))
    index.remove("a", removed(3))
    assert index.match(prefix(TOKENS)) == {"a": 3}, "a copy is a copy, and no report"
    index.remove("a", removed(3, 2, 1))
    assert index.match(prefix(TOKENS)) == {}


def test_a_re_report_of_what_was_missed_is_taken_and_the_rest_is_not_counted(index):
    index.expect_reused("a")
    index.store("a", stored([1, 2, 3, 4], TOKENS))
    index.remove("a", removed(4, 2))
    index.store("a", stored([1, 2, 3, 4], TOKENS))
    assert index.match(prefix(TOKENS)) == {"a": 4}
    index.remove("a", removed(4, 3, 2, 1))
    assert index.match(prefix(TOKENS)) == {}


def test_re_reports_are_expected_after_a_reset_too_and_of_that_replica_alone(index):
    index.expect_reused("a")
    index.clear("a")
    for replica_id in "aabb":
        index.store(replica_id, stored([1], TOKENS[:4]))
    index.remove("a", removed(1))
    index.remove("b", removed(1))
    assert index.match(prefix(TOKENS)) == {"b": 1}


def test_a_block_in_two_groups_is_held_until_it_is_removed_from_both(index):
    full: dict[str, Any] = {"kv_cache_spec_kind": "full_attention"}
    index.store("a", stored([1, 2], TOKENS[:8], group_idx=0, **full))
    index.store("a", stored([1, 2], TOKENS[:8], group_idx=2, **full))
    index.remove("a", removed(2, 1, group_idx=0))
    assert index.match(prefix(TOKENS)) == {"a": 2}
    index.remove("a", removed(2, 1, group_idx=2))
    assert index.match(prefix(TOKENS)) == {}


def test_a_removal_in_a_window_group_leaves_the_full_group(index):
    index.store("a", stored([1], TOKENS[:4], group_idx=1, kv_cache_spec_kind="full_attention"))
    index.store("a", stored([1], TOKENS[:4], group_idx=0, kv_cache_spec_kind="sliding_window"))
    index.remove("a", removed(1, group_idx=0))
    assert index.match(prefix(TOKENS)) == {"a": 1}


def test_window_groups_and_later_groups_of_unknown_kind_are_not_matched(index):
    index.store("a", stored([1], TOKENS[:4], group_idx=0, kv_cache_spec_kind="sliding_window"))
    index.store("a", stored([1], TOKENS[:4], group_idx=1))
    index.store("b", stored([1], TOKENS[:4], group_idx=0))
    assert index.match(prefix(TOKENS)) == {"b": 1}


@pytest.mark.parametrize("kind", ["full_attention", "mla_attention", "sink_full_attention"])
def test_groups_that_keep_whole_prefixes_are_matched(index, kind):
    index.store("a", stored([1], TOKENS[:4], group_idx=1, kv_cache_spec_kind=kind))
    assert index.match(prefix(TOKENS)) == {"a": 1}


def test_other_tiers_neither_add_to_nor_take_from_the_engines_own_memory(index):
    index.store("a", stored([1], TOKENS[:4], medium="GPU"))
    index.store("a", stored([1, 2], TOKENS[:8], medium="CPU"))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    index.remove("a", removed(1, medium="CPU"))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    index.remove("a", removed(1, medium="GPU"))
    assert index.match(prefix(TOKENS)) == {}


def test_placeholders_of_offloading_tiers_are_ignored(index):
    index.store("a", stored([1, 2], [], block_size=0, medium="CPU"))
    index.store("a", stored([1, 2], [], block_size=0, medium="GPU"))
    assert index.match(prefix(TOKENS)) == {}
    assert index.block_sizes("a") == frozenset()


def test_clearing_drops_all_copies_and_keeps_the_replica_known(index):
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.clear("a")
    assert index.match(prefix(TOKENS)) == {}
    assert index.block_sizes("a") == {4}
    index.store("a", stored([1], TOKENS[:4]))
    index.remove("a", removed(1))
    assert index.match(prefix(TOKENS)) == {}


def test_clearing_one_replica_leaves_the_others(index):
    for replica_id in "abc":
        index.store(replica_id, stored([1, 2], TOKENS[:8]))
    index.clear("b")
    assert index.match(prefix(TOKENS)) == {"a": 2, "c": 2}


def test_a_child_before_its_parent_is_attached_when_the_parent_comes(index):
    index.store("a", stored([3, 4], TOKENS[8:], parent=2))
    assert index.match(prefix(TOKENS)) == {}
    assert index.match(prefix(TOKENS[8:])) == {}, "taken for the start of a prompt"
    index.store("a", stored([1, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 4}


def test_whole_branches_wait_for_their_root(index):
    index.store("a", stored([4], TOKENS[12:], parent=3))
    index.store("a", stored([3], TOKENS[8:12], parent=2))
    index.store("a", stored([2], TOKENS[4:8], parent=1))
    index.store("a", stored([1], TOKENS[:4]))
    assert index.match(prefix(TOKENS)) == {"a": 4}


def test_a_block_removed_while_it_waits_for_its_parent_does_not_come_back(index):
    index.store("a", stored([3, 4], TOKENS[8:], parent=2))
    index.remove("a", removed(4))
    index.store("a", stored([1, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 3}


def test_a_forgotten_replica_leaves_no_ghost_for_one_with_the_same_address(index):
    index.store("a", stored([1, 2], TOKENS[:8]))
    index.store("a", stored([4], TOKENS[12:], parent=3))
    index.forget("a")
    assert index.match(prefix(TOKENS)) == {}
    assert index.block_sizes("a") == frozenset()
    index.store("a", stored([3], TOKENS[8:12], parent=2))
    assert index.match(prefix(TOKENS)) == {}
    index.remove("a", removed(1, 2))
    index.store("a", stored([1], TOKENS[:4]))
    assert index.match(prefix(TOKENS)) == {"a": 1}


def test_removals_for_unknown_replicas_and_blocks_are_harmless(index):
    index.remove("nobody", removed(1))
    index.clear("nobody")
    index.forget("nobody")
    index.store("a", stored([1], TOKENS[:4]))
    index.remove("a", removed(99))
    assert index.match(prefix(TOKENS)) == {"a": 1}


@pytest.mark.parametrize("count", [20, 70, 300])
def test_every_one_of_many_holders_of_a_prefix_is_found(index, count):
    for number in range(count):
        index.store(f"r{number}", stored([1, 2, 3, 4], TOKENS))
    assert index.match(prefix(TOKENS)) == {f"r{number}": 4 for number in range(count)}


def test_a_match_runs_from_block_0_to_the_first_hole(index):
    index.store("a", stored([1, 2, 3, 4], TOKENS))
    index.store("b", stored([1, 2, 3, 4], TOKENS))
    index.remove("a", removed(2))
    index.remove("b", removed(1))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    index.store("b", stored([1], TOKENS[:4]))
    assert index.match(prefix(TOKENS)) == {"a": 1, "b": 4}


def test_a_reset_clears_every_tier(index):
    index.store("a", stored([1], TOKENS[:4], medium="GPU"))
    index.store("a", stored([1, 2], TOKENS[:8], medium="CPU"))
    index.clear("a")
    assert index.match(prefix(TOKENS)) == {}
    index.store("a", stored([2], TOKENS[4:8], parent=1, medium="CPU"))
    index.store("a", stored([1], TOKENS[:4], medium="GPU"))
    assert index.match(prefix(TOKENS)) == {"a": 1}


def test_an_empty_prefix_matches_nobody(index):
    index.store("a", stored([1], TOKENS[:4]))
    assert index.match([]) == {}


def test_engines_with_other_block_sizes_match_the_prefix_in_their_own(index):
    index.store("small", stored([1, 2, 3, 4], TOKENS))
    index.store("large", stored([1], TOKENS, block_size=16))
    assert index.match(prefix(TOKENS, block_size=4)) == {"small": 4}
    assert index.match(prefix(TOKENS, block_size=16)) == {"large": 1}
    assert index.block_sizes("small") == {4}
    assert index.block_sizes("large") == {16}
    assert index.block_sizes() >= {4, 16}


@pytest.mark.parametrize("handle", [-1, 2**64 - 1, b"\x01" * 16, b"\xff" * 32])
def test_engine_hashes_are_opaque(index, handle):
    index.store("a", stored([handle, 2], TOKENS[:8]))
    assert index.match(prefix(TOKENS)) == {"a": 2}
    index.remove("a", removed(handle))
    assert index.match(prefix(TOKENS)) == {}


def test_two_engine_hashes_of_one_block_are_two_copies(index):
    index.store("a", stored([1], TOKENS[:4]))
    index.store("a", stored([7], TOKENS[:4]))
    index.remove("a", removed(1))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    index.remove("a", removed(1))
    assert index.match(prefix(TOKENS)) == {"a": 1}
    index.remove("a", removed(7))
    assert index.match(prefix(TOKENS)) == {}


def test_an_engine_hash_used_for_another_block_means_the_newer_one(index):
    other = list(range(100, 104))
    index.store("a", stored([1], TOKENS[:4]))
    index.store("a", stored([1], other))
    assert index.match(prefix(TOKENS)) == {}
    assert index.match(prefix(other)) == {"a": 1}
    index.remove("a", removed(1))
    assert index.match(prefix(other)) == {}


def test_salts_adapters_and_the_base_model_share_nothing(index):
    spaces: dict[str, dict[str, Any]] = {
        "base": {},
        "salt": {"extra_keys": [["x"]]},
        "adapter": {"lora_name": "x", "extra_keys": [["x"]]},
        "salted adapter": {"lora_name": "x", "extra_keys": [["x", "x"]]},
        "numbered adapter": {"lora_id": 1},
        "odd name": {"lora_name": {"cache_salt": "x"}},
        "image": {"extra_keys": [[["image", 0]]]},
        "salted image": {"extra_keys": [[["image", 0], "x"]]},
        "other image": {"extra_keys": [[["other", 0]]]},
        "image elsewhere": {"extra_keys": [[["image", 1]]]},
    }
    for number, (name, fields) in enumerate(spaces.items()):
        index.store(name, stored([number], TOKENS[:4], **fields))
    assert index.match(prefix(TOKENS)) == {"base": 1}
    assert index.match(prefix(TOKENS, salt="x")) == {"salt": 1}
    assert index.match(prefix(TOKENS, adapter="x")) == {"adapter": 1}
    assert index.match(prefix(TOKENS, salt="x", adapter="x")) == {"salted adapter": 1}


def test_an_adapters_name_in_every_blocks_keys_does_not_break_the_match(index):
    names: dict[str, Any] = {"lora_name": "x", "extra_keys": [["x"], ["x"]]}
    index.store("a", stored([1, 2], TOKENS[:8], **names))
    index.store("a", stored([3, 4], TOKENS[8:], parent=2, **names))
    assert index.match(prefix(TOKENS, adapter="x")) == {"a": 4}


def test_a_salt_in_the_first_blocks_keys_holds_for_the_whole_chain(index):
    index.store("a", stored([1, 2], TOKENS[:8], extra_keys=[["tenant"], None]))
    index.store("a", stored([3, 4], TOKENS[8:], parent=2, extra_keys=[None, None]))
    assert index.match(prefix(TOKENS, salt="tenant")) == {"a": 4}


@pytest.mark.parametrize(
    "event",
    [
        stored([1, 2], TOKENS[:7]),
        stored([1], TOKENS[:8]),
        stored([1], [-1, 0, 0, 0]),
        stored([1], [2**32, 0, 0, 0]),
        stored([1], [(1, 2), (2, 3), (3, 4), (4, 5)]),  # type: ignore[list-item]
        stored([], TOKENS[:4]),
    ],
    ids=["short", "long", "negative", "too great", "pairs", "no hashes"],
)
def test_events_that_cannot_be_read_are_left_out(index, event):
    index.store("a", event)
    index.store("a", stored([9], TOKENS[4:8], parent=1))
    assert index.match(prefix(TOKENS)) == {}

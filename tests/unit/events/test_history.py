"""What is believed of a replica that tells nothing: what was sent there and may still be."""

import pytest

from router.events.history import CacheShape, RoutedHistory, read_shape
from router.index import MemoryIndex
from tests.support.events import prefix

SHAPE = CacheShape(block_size=4, blocks=8)
ONE, OTHER, THIRD = (prefix(range(start, start + 16)) for start in (0, 100, 200))


@pytest.fixture
def index() -> MemoryIndex:
    return MemoryIndex(clock=lambda: 0.0)


@pytest.fixture
def history(index: MemoryIndex) -> RoutedHistory:
    return RoutedHistory(index, "a", SHAPE)


def test_the_block_size_is_known_before_the_first_prompt(index, history):
    assert index.block_sizes("a") == {4}


def test_what_was_sent_matches_like_what_events_told(index, history):
    history.served(ONE, None)
    assert index.match(ONE) == {"a": 4}
    assert index.match(OTHER) == {}


def test_the_least_recently_used_prompt_goes_first_and_its_end_before_its_beginning(index, history):
    history.served(ONE, None)
    history.served(OTHER, None)
    history.served(ONE, None)
    history.served(THIRD[:2], None)
    assert index.match(ONE) == {"a": 4}
    assert index.match(OTHER) == {"a": 2}
    assert len(history) == SHAPE.blocks


def test_a_missed_hit_takes_along_whatever_was_used_before_it(index, history):
    history.served(OTHER, None)
    history.served(ONE, None)
    history.served(ONE, 1)
    assert index.match(ONE) == {"a": 4}
    assert index.match(OTHER) == {}


def test_a_full_hit_but_for_the_last_block_is_no_miss(index, history):
    history.served(OTHER, None)
    history.served(ONE, None)
    history.served(ONE, 3)
    assert index.match(OTHER) == {"a": 4}


def test_guesses_can_all_be_taken_back(index, history):
    history.served(ONE, None)
    history.clear()
    assert index.match(ONE) == {}


@pytest.mark.parametrize(
    ("metrics", "shape"),
    [
        ("", CacheShape(16, 4096)),
        ('vllm:cache_config_info{block_size="32",num_gpu_blocks="100"} 1.0\n', CacheShape(32, 100)),
        (
            '# HELP x\nvllm:cache_config_info{block_size="16",kv_cache_size_tokens="4096",'
            'num_gpu_blocks="512",sliding_window="None"} 1.0\n',
            CacheShape(16, 256),
        ),
        ('vllm:cache_config_info{block_size="None"} 1.0\n', CacheShape(16, 4096)),
    ],
    ids=["silent", "one rank", "two ranks", "nonsense"],
)
def test_the_caches_size_is_read_from_the_engines_metrics(metrics, shape):
    assert read_shape(metrics) == shape

"""Reading what vLLM says of itself."""

import pytest

from workers.launch.checks import NotVisible, Publisher, cache_block_size, stated_publishers
from workers.launch.flags import Launch

SETTINGS = {
    "enable_kv_cache_events": True,
    "publisher": "zmq",
    "endpoint": "tcp://*:5557",
    "replay_endpoint": "tcp://*:5657",
    "topic": "kv-events",
}


def metrics(**labels: str) -> str:
    inner = ",".join(f'{name}="{value}"' for name, value in labels.items())
    return f"# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{{inner}}} 1.0\n"


def test_block_size_is_read_from_metrics():
    assert cache_block_size(metrics(block_size="32", enable_prefix_caching="True")) == 32


def test_a_cache_that_is_off_names_its_flag():
    with pytest.raises(NotVisible, match="--enable-prefix-caching"):
        cache_block_size(metrics(block_size="32", enable_prefix_caching="False"))


def test_a_missing_block_size_names_its_flag():
    with pytest.raises(NotVisible, match="--block-size"):
        cache_block_size(metrics(enable_prefix_caching="True"))


def test_empty_metrics_name_the_flag_that_empties_them():
    with pytest.raises(NotVisible, match="--disable-log-stats"):
        cache_block_size("")


def test_publishers_of_each_rank_as_stated():
    second = SETTINGS | {"endpoint": "tcp://*:5558", "replay_endpoint": "tcp://*:5658"}
    expected = (
        Publisher(0, "tcp://*:5557", "tcp://*:5657"),
        Publisher(1, "tcp://*:5558", "tcp://*:5658"),
    )
    assert stated_publishers({"0": SETTINGS, "1": second}, Launch(model="m")) == expected
    assert stated_publishers([SETTINGS, second], Launch(model="m")) == expected


def test_older_releases_state_nothing_so_flags_tell():
    launch = Launch(model="m", flags=("--data-parallel-size", "2"))
    assert stated_publishers(None, launch) == (
        Publisher(0, "tcp://*:5557", "tcp://*:5657"),
        Publisher(1, "tcp://*:5558", "tcp://*:5658"),
    )


@pytest.mark.parametrize(
    ("sources", "flag"),
    [
        ({}, "--kv-events-config did not take effect"),
        ({"0": SETTINGS | {"replay_endpoint": None}}, "replay_endpoint"),
        ({"0": SETTINGS | {"topic": "other"}}, "'other'"),
    ],
)
def test_what_did_not_take_is_named(sources: object, flag: str):
    with pytest.raises(NotVisible, match=flag):
        stated_publishers(sources, Launch(model="m"))

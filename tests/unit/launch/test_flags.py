"""Which command line vLLM gets, and which flags are refused."""

import json
import socket
from random import Random

import pytest

from workers.launch.flags import (
    Flags,
    Launch,
    LaunchRefused,
    command,
    http_address,
    is_bound_by_vllm,
    ranks,
    with_ports_chosen,
)


def test_cache_is_made_visible():
    words = command(Launch(model="m", executable="/opt/vllm"))
    assert words[:3] == ["/opt/vllm", "serve", "m"]
    assert "--enable-prefix-caching" in words
    assert "--enable-prompt-tokens-details" in words
    assert Flags(words).value("--shutdown-timeout") == "30"
    config = json.loads(Flags(words).value("--kv-events-config") or "")
    assert config == {
        "enable_kv_cache_events": True,
        "publisher": "zmq",
        "endpoint": "tcp://*:5557",
        "replay_endpoint": "tcp://*:5657",
        "topic": "kv-events",
    }


def test_the_users_flags_are_passed_on_untouched_and_last():
    flags = ("--max_model_len=8192", "--lora-modules", "a=/x", "-tp", "2", "--dtype", "bfloat16")
    assert tuple(command(Launch(model="m", flags=flags))[-len(flags) :]) == flags


@pytest.mark.parametrize(
    ("flags", "cure"),
    [
        (["--kv-events-config", "{}"], "--events"),
        (["--kv_events_config={}"], "--events"),
        (["--kv-events-config.topic", "x"], "--topic"),
        (["--no-enable-prefix-caching"], "leave it out"),
        (["--no_enable_prompt_tokens_details"], "leave it out"),
        (["--disable-log-stats"], "leave it out"),
        (["--shutdown-timeout", "0"], "give seconds"),
        (["--shutdown-timeout=0"], "give seconds"),
        (["--headless"], "vllm itself"),
        (["--uds", "/tmp/s"], "--host and --port"),
    ],
)
def test_a_contradicting_flag_is_refused_with_its_cure(flags: list[str], cure: str):
    with pytest.raises(LaunchRefused, match=cure):
        command(Launch(model="m", flags=tuple(flags)))


def test_the_users_shutdown_timeout_replaces_ours():
    words = command(Launch(model="m", flags=("--shutdown-timeout", "90")))
    assert words.count("--shutdown-timeout") == 1


def test_no_drain_leaves_the_flag_out_for_releases_without_it():
    assert "--shutdown-timeout" not in command(Launch(model="m", drain_s=0))


def test_a_cpu_gets_small_blocks_and_no_compiler():
    words = command(Launch(model="m", on_cpu=True))
    assert Flags(words).value("--block-size") == "32"
    assert "--enforce-eager" in words


def test_on_a_cpu_the_users_choice_wins():
    flags = ("--block-size=64", "--no-enforce-eager")
    words = command(Launch(model="m", flags=flags, on_cpu=True))
    assert "--enforce-eager" not in words
    assert "--block-size" not in words


def test_a_gpu_gets_neither():
    words = command(Launch(model="m"))
    assert "--block-size" not in words
    assert "--enforce-eager" not in words


def test_free_ports_replace_zeros_everywhere():
    asked = Launch(
        model="m",
        events="tcp://*:0",
        replay="tcp://*:0",
        flags=("--port=0", "--seed", "0"),
    )
    chosen = with_ports_chosen(asked, Random(1))
    port = Flags(chosen.flags).value("--port")
    assert chosen.flags == ("--seed", "0", "--port", port)
    numbers = {port, *(e.removeprefix("tcp://*:") for e in (chosen.events, chosen.replay))}
    assert len(numbers) == 3
    assert "0" not in numbers


def test_a_port_in_use_is_not_chosen():
    asked = Launch(model="m", events="tcp://*:0")
    first = with_ports_chosen(asked, Random(1)).events
    with socket.create_server(("127.0.0.1", int(first.rpartition(":")[2]))):
        assert with_ports_chosen(asked, Random(1)).events != first


def test_given_ports_stay():
    asked = Launch(model="m", events="tcp://*:7000", flags=("--port", "8001"))
    assert with_ports_chosen(asked, Random(1)) == asked


@pytest.mark.parametrize(
    ("flags", "address"),
    [
        ((), ("http", "127.0.0.1", "8000")),
        (("--host", "0.0.0.0", "--port", "9"), ("http", "127.0.0.1", "9")),
        (("--host=10.0.0.7", "--ssl-certfile", "c.pem"), ("https", "10.0.0.7", "8000")),
    ],
)
def test_where_the_api_is_reached(flags: tuple[str, ...], address: tuple[str, str, str]):
    assert http_address(Launch(model="m", flags=flags)) == address


@pytest.mark.parametrize("flags", [("--data-parallel-size", "4"), ("-dp", "4")])
def test_data_parallel_ranks_are_counted(flags: tuple[str, ...]):
    assert ranks(Launch(model="m", flags=flags)) == 4


def test_one_rank_without_data_parallelism():
    assert ranks(Launch(model="m")) == 1


def test_vllm_binds_a_star_and_connects_to_a_host():
    assert is_bound_by_vllm("tcp://*:5557")
    assert not is_bound_by_vllm("tcp://router:5557")

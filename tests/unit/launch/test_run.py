"""The launcher as a process, with a stand-in for the `vllm` command."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import fake_vllm

START = """
import argparse, sys
from workers.launch.cli import add_parser
parser = argparse.ArgumentParser()
add_parser(parser.add_subparsers(required=True))
args = parser.parse_args()
sys.exit(args.run(args))
"""
DEADLINE_S = 20.0


class Launcher:
    """A running launcher and the record of the vLLM that it started."""

    def __init__(self, process: "subprocess.Popen[str]", record: Path) -> None:
        self.process = process
        self._record = record

    def ready_line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line: dict[str, Any] = json.loads(self.process.stdout.readline())
        return line

    def end(self) -> tuple[int, str, str]:
        """(exit code, rest of stdout, stderr)."""
        out, err = self.process.communicate(timeout=DEADLINE_S)
        return self.process.returncode, out, err

    def recorded(self) -> list[dict[str, Any]]:
        return fake_vllm.recorded(self._record)

    def wait_for(self, key: str) -> None:
        give_up = time.monotonic() + DEADLINE_S
        while not (self._record.exists() and any(key in fact for fact in self.recorded())):
            assert time.monotonic() < give_up, f"vLLM never noted {key}"
            time.sleep(0.02)


Start = Callable[..., Launcher]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[Launcher] = []

    def start(*words: str, options: tuple[str, ...] = ("--no-cpu",), **character: Any) -> Launcher:
        script, record, environ = fake_vllm.install(tmp_path, **character)
        ports = ("--events", "tcp://*:0", "--replay", "tcp://*:0")
        command = ["vllm", "--vllm", str(script), *ports, *options, "m", "--port", "0", *words]
        process = subprocess.Popen(
            [sys.executable, "-c", START, *command],
            env=os.environ | environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(Launcher(process, record))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.process.poll() is None:
            launcher.process.terminate()
        launcher.process.communicate(timeout=DEADLINE_S)


@pytest.mark.parametrize("sources", ["stated", "missing"])
def test_ready_line_tells_where_it_is_reached(start: Start, sources: str):
    launcher = start("--served-model-name", "chat", "--block-size", "64", sources=sources)
    line = launcher.ready_line()
    port = next(fact["listening"] for fact in launcher.recorded() if "listening" in fact)
    assert line["url"] == f"http://127.0.0.1:{port}"
    assert line["events_url"].startswith("tcp://127.0.0.1:")
    assert line["replay_url"].startswith("tcp://127.0.0.1:")
    assert line["events_url"] != line["replay_url"]
    assert line["ranks"] == [{key: line[key] for key in ("events_url", "replay_url")}]
    assert (line["model"], line["block_size"], line["topic"]) == ("chat", 64, "kv-events")
    assert line["pid"] == launcher.process.pid


def test_stdout_carries_the_ready_line_alone(start: Start):
    launcher = start()
    launcher.ready_line()
    launcher.process.terminate()
    _, out, err = launcher.end()
    assert out == ""
    assert "a line of log on stdout" in err


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT])
def test_signals_are_passed_on_and_its_exit_code_is_ours(start: Start, signum: signal.Signals):
    launcher = start(exit_code=7)
    launcher.ready_line()
    launcher.process.send_signal(signum)
    code, _, _ = launcher.end()
    assert code == 7
    assert launcher.recorded()[-1] == {"signal": signum.name}


def test_a_closing_terminal_drains(start: Start):
    launcher = start()
    launcher.ready_line()
    launcher.process.send_signal(signal.SIGHUP)
    launcher.end()
    assert launcher.recorded()[-1] == {"signal": "SIGTERM"}


def test_a_second_signal_reaches_a_vllm_that_drains(start: Start):
    launcher = start(signals_to_exit=2)
    launcher.ready_line()
    launcher.process.terminate()
    launcher.wait_for("signal")
    launcher.process.terminate()
    code, _, _ = launcher.end()
    assert code == 0
    assert launcher.recorded()[-2:] == [{"signal": "SIGTERM"}] * 2


def test_a_signal_while_it_starts_ends_it(start: Start):
    launcher = start(healthy=False)
    launcher.wait_for("listening")
    launcher.process.terminate()
    code, out, _ = launcher.end()
    assert (code, out) == (0, "")


def test_death_by_signal_is_told_as_shells_do(start: Start):
    launcher = start()
    os.kill(launcher.ready_line()["engine_pid"], signal.SIGKILL)
    code, _, _ = launcher.end()
    assert code == 128 + signal.SIGKILL


def test_a_vllm_that_refuses_its_flags_ends_us_with_its_code(start: Start):
    code, out, err = start(exit_at_once=2).end()
    assert (code, out) == (2, "")
    assert "before it was ready" in err


@pytest.mark.parametrize(
    ("character", "cure"),
    [
        ({"prefix_caching": False}, "--enable-prefix-caching"),
        ({"has_stats": False}, "--disable-log-stats"),
        ({"sources": "empty"}, "--kv-events-config"),
        ({"topic": "another"}, "--kv-events-config"),
        ({"replays": False}, "--replay"),
    ],
)
def test_a_vllm_that_hides_its_cache_is_stopped(start: Start, character: dict[str, Any], cure: str):
    launcher = start(**character)
    code, out, err = launcher.end()
    assert (code, out) == (1, "")
    assert cure in err
    assert launcher.recorded()[-1] == {"signal": "SIGTERM"}


def test_a_vllm_that_never_gets_healthy_is_stopped(start: Start):
    launcher = start(options=("--no-cpu", "--start-timeout-s", "1"), healthy=False)
    code, _, err = launcher.end()
    assert code == 1
    assert "--start-timeout-s" in err


def test_an_api_key_is_used_for_the_checks(start: Start):
    assert start("--api-key", "k").ready_line()["model"] == "m"


def test_the_cpu_recipe_reaches_vllm(start: Start):
    launcher = start(options=("--cpu", "--cpu-cores", "1", "--cpu-kv-gib", "2"))
    assert launcher.ready_line()["block_size"] == 32
    call = launcher.recorded()[0]
    assert "--enforce-eager" in call["argv"]
    assert call["environ"]["VLLM_CPU_OMP_THREADS_BIND"] == "1"
    assert call["environ"]["VLLM_CPU_KVCACHE_SPACE"] == "2"


def test_contradicting_flags_are_a_usage_error(start: Start):
    code, _, err = start("--no-enable-prefix-caching").end()
    assert code == 2
    assert "--no-enable-prefix-caching" in err


def test_our_options_after_the_model_are_a_usage_error(start: Start):
    code, _, err = start("--topic", "x").end()
    assert code == 2
    assert "before MODEL" in err


def test_a_missing_executable_is_named(start: Start):
    launcher = start(options=("--no-cpu", "--vllm", "/nowhere/vllm"))
    code, _, err = launcher.end()
    assert code == 127
    assert "/nowhere/vllm" in err

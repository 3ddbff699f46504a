"""What an engine says of itself at `/metrics`: how large its cache is, and what it does now."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class EngineReport:
    """One rank's figures; None: the engine doesn't say.

    `cache_tokens`: tokens that its cache can hold. `cache_usage`: the share of it that requests
    in flight hold, 0 to 1 (what is cached beside them is free). `running`, `waiting`: requests.
    """

    cache_tokens: int | None = None
    cache_usage: float | None = None
    running: int | None = None
    waiting: int | None = None


_USAGE: Final = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "sglang:token_usage")
_RUNNING: Final = (
    "vllm:num_requests_running",
    "sglang:num_running_reqs",
    "llamacpp:requests_processing",
)
_WAITING: Final = (
    "vllm:num_requests_waiting",
    "sglang:num_queue_reqs",
    "llamacpp:requests_deferred",
)
_SIZE: Final = "sglang:max_total_num_tokens"
_CONFIG: Final = "vllm:cache_config_info"
_WANTED: Final = frozenset((*_USAGE, *_RUNNING, *_WAITING, _SIZE, _CONFIG))
_LINE: Final = re.compile(r"^([a-z]+:\w+)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class _Row:
    name: str
    labels: dict[str, str]
    value: float

    @property
    def rank(self) -> int:
        text = self.labels.get("engine") or self.labels.get("dp_rank") or "0"
        return int(text) if text.isdecimal() else 0


def read_report(text: str, rank: int = 0) -> EngineReport:
    """The figures of one data-parallel rank in Prometheus' text; what it has not stays None."""
    rows = list(_rows(text))
    ranks = len({row.rank for row in rows if row.name in _RUNNING}) or 1
    own = {row.name: row.value for row in rows if row.rank == rank}
    config = next((row.labels for row in rows if row.name == _CONFIG), {})
    return EngineReport(
        cache_tokens=_count(own.get(_SIZE)) or _config_tokens(config, ranks),
        cache_usage=_first(own, _USAGE),
        running=_count(_first(own, _RUNNING)),
        waiting=_count(_first(own, _WAITING)),
    )


def _rows(text: str) -> Iterator[_Row]:
    for name, labels, value in _LINE.findall(text):
        if name in _WANTED:
            try:
                yield _Row(name, dict(_LABEL.findall(labels)), float(value))
            except ValueError:
                continue


def _config_tokens(labels: dict[str, str], ranks: int) -> int | None:
    """vLLM: of all ranks, blocks are the sum, but tokens one rank's (seen with 0.32)."""
    tokens = _number(labels.get("kv_cache_size_tokens"))
    if tokens is not None:
        return tokens
    blocks, size = _number(labels.get("num_gpu_blocks")), _number(labels.get("block_size"))
    return blocks * size // ranks if blocks is not None and size is not None else None


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdecimal() and int(text) else None


def _first(own: dict[str, float], names: tuple[str, ...]) -> float | None:
    return next((own[name] for name in names if name in own), None)


def _count(value: float | None) -> int | None:
    return int(value) if value is not None and 0 <= value < 1e15 else None

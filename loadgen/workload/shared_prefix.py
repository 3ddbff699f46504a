"""Groups of prompts that share a long system prompt, and nothing else: retrieval, assistants."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass

from loadgen.arrival import arrival_times
from loadgen.text import Prose
from loadgen.workload.protocol import Message, Session, Turn, salted


@dataclass(frozen=True, slots=True)
class SharedPrefixOptions:
    """Lengths in tokens. Group k is drawn with weight 1/k**zipf: 0 draws all evenly."""

    requests: int = 200
    rate_per_s: float = 4.0
    arrival: str = "poisson"
    burstiness: float = 1.0
    groups: int = 8
    prefix_tokens: int = 1024
    question_tokens: int = 128
    output_tokens: int = 64
    zipf: float = 0.0


class SharedPrefix:
    """Single-turn sessions; which group asks next is drawn, so neighbours differ."""

    name = "shared-prefix"

    def __init__(self, options: SharedPrefixOptions, prose: Prose, salt: str = "") -> None:
        self._options = options
        self._prose = prose
        self._salt = salt

    @property
    def requests(self) -> int:
        return self._options.requests

    @property
    def parameters(self) -> Mapping[str, object]:
        return asdict(self._options)

    def sessions(self) -> Iterator[Session]:
        options = self._options
        rng = random.Random(f"shared-prefix {self._prose.seed}")
        times = arrival_times(options.arrival, options.rate_per_s, rng, options.burstiness)
        weights = [1 / (k + 1) ** options.zipf for k in range(options.groups)]
        groups = range(options.groups)
        for number, start_s in enumerate(itertools.islice(times, options.requests)):
            group = rng.choices(groups, weights)[0]
            yield Session(f"g{group}-{number}", start_s, (self._turn(group, number),))

    def _turn(self, group: int, number: int) -> Turn:
        options, prose = self._options, self._prose
        messages = (
            Message("system", prose.passage(f"group {group}", options.prefix_tokens)),
            Message("user", prose.passage(f"question {number}", options.question_tokens)),
        )
        return Turn(
            messages=salted(messages, self._salt),
            max_tokens=options.output_tokens,
            input_tokens=options.prefix_tokens + options.question_tokens,
        )

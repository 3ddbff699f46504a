"""Conversations: each prompt is the one before, its answer, and a new question."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field

from loadgen.arrival import Arrivals
from loadgen.text import Prose
from loadgen.workload.protocol import Message, Session, Turn, salted


@dataclass(frozen=True, slots=True, kw_only=True)
class MultiTurnOptions:
    """Lengths are in tokens and means; `spread` 0.2 draws user and answer evenly within ±20 %.

    `arrivals` are those of requests: conversations start as often as in a steady state, divided
    by their turns. With `groups`, conversations share that many system prompts (0: each has its
    own). `first_user_tokens` None: as `user_tokens`. Think times are exponential, cut at three
    times the mean, so that one long pause doesn't decide how long a run lasts.
    """

    requests: int = 200
    arrivals: Arrivals = field(default_factory=Arrivals)
    turns: int = 8
    shared_tokens: int = 0
    system_tokens: int = 1000
    groups: int = 0
    user_tokens: int = 100
    first_user_tokens: int | None = None
    output_tokens: int = 64
    think_s: float = 2.0
    spread: float = 0.2


class MultiTurn:
    """Conversations that grow turn by turn, each with a system prompt of its own."""

    name = "multi-turn"

    def __init__(self, options: MultiTurnOptions, prose: Prose, salt: str = "") -> None:
        self._options = options
        self._prose = prose
        self._salt = salt

    @property
    def requests(self) -> int:
        """Whole conversations only: the wish is rounded up."""
        return math.ceil(self._options.requests / self._options.turns) * self._options.turns

    @property
    def parameters(self) -> Mapping[str, object]:
        return asdict(self._options)

    def sessions(self) -> Iterator[Session]:
        options = self._options
        rng = random.Random(f"multi-turn {self._prose.seed}")
        times = options.arrivals.divided(options.turns).times(rng)
        count = self.requests // options.turns
        for number, start_s in enumerate(itertools.islice(times, count)):
            chance = random.Random(f"conversation {self._prose.seed} {number}")
            yield Session(f"c{number}", start_s, tuple(self._turns(number, chance)))

    def _turns(self, number: int, rng: random.Random) -> Iterator[Turn]:
        options, prose = self._options, self._prose
        prompt_tokens = options.shared_tokens + options.system_tokens
        opening = salted((Message("system", self._system(number)),), self._salt)
        for turn in range(options.turns):
            mean = options.user_tokens if turn else options.first_user_tokens
            user_tokens = around(mean or options.user_tokens, options.spread, rng)
            output_tokens = around(options.output_tokens, options.spread, rng)
            question = Message("user", prose.passage(f"turn {number} {turn}", user_tokens))
            yield Turn(
                messages=(*opening, question),
                max_tokens=output_tokens,
                input_tokens=prompt_tokens + user_tokens,
                think_s=min(rng.expovariate(1.0), 3.0) * options.think_s,
            )
            opening = ()
            prompt_tokens += user_tokens + output_tokens

    def _system(self, number: int) -> str:
        options, prose = self._options, self._prose
        which = number % options.groups if options.groups else number
        own = prose.passage(f"system {which}", options.system_tokens)
        if not options.shared_tokens:
            return own
        return f"{prose.passage('shared', options.shared_tokens)} {own}"


def around(mean: int, spread: float, rng: random.Random) -> int:
    """A whole number evenly within ±`spread`, at least 1."""
    return max(1, round(rng.uniform(1 - spread, 1 + spread) * mean))

"""Groups of prompts that share a system prompt, asked at rising rates: llm-d's benchmark."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from loadgen.simulate.traffic import Ask, Dialogue, Ids, Stage, Traffic


@dataclass(frozen=True, slots=True)
class Ladder:
    """Lengths in tokens. `stages`: (requests/s, seconds); the first one warms up.

    As inference-perf's `shared_prefix`: one shuffled list of groups × prompts, walked again and
    again, so every prompt recurs in full.
    """

    groups: int
    prompts: int
    system_tokens: int
    question_tokens: int
    output_tokens: int
    stages: Sequence[tuple[float, float]]
    is_poisson: bool = True

    def traffic(self, seed: int) -> Traffic:
        rng, ids = Random(f"ladder {seed}"), Ids()
        asks = []
        for _ in range(self.groups):
            system = (ids.new(), self.system_tokens)
            for _ in range(self.prompts):
                question = (ids.new(), self.question_tokens)
                asks.append(Ask((system, question), self.output_tokens))
        rng.shuffle(asks)
        stages: list[Stage] = []
        number = 0
        for rate, duration_s in self.stages:
            count = round(rate * duration_s)
            turns = [asks[(number + k) % len(asks)] for k in range(count)]
            number += count
            dialogues = [
                Dialogue(start_s, (ask,))
                for start_s, ask in zip(self._times(rate, count, rng), turns, strict=True)
            ]
            label = f"{rate:g}/s" if stages else "warm-up"
            stages.append(Stage(label, dialogues, is_measured=bool(stages)))
        return Traffic(stages, str(self))

    def _times(self, rate: float, count: int, rng: Random) -> list[float]:
        if not self.is_poisson:
            return [k / rate for k in range(count)]
        now, times = 0.0, []
        for _ in range(count):
            now += rng.expovariate(rate)
            times.append(now)
        return times


RATES: Final = (
    (15, 50), (3, 20), (10, 20), (15, 20), (20, 38), (22, 34), (25, 30), (30, 25), (35, 21),
    (40, 38), (43, 36), (46, 33), (49, 30), (52, 29), (55, 27), (57, 26), (60, 25),
)  # fmt: skip
LADDER_73: Final = Ladder(150, 5, 6000, 1200, 1000, RATES)
RATES_37: Final = ((9, 30), (3, 210), (4, 180), (5, 120), (6, 120), (8, 90), (10, 70), (12, 60))
LADDER_37: Final = Ladder(83, 3, 8000, 1000, 1000, RATES_37, is_poisson=False)

"""How long a replica takes to compute a prompt, learnt from what it has shown.

service ≈ step + per_token · uncached + per_pair · pairs + per_hit_token · reused
          + per_running · decoding + host, if it found nobody before it

`pairs` are what attention looks at: each uncached token with each one before it, reused or not. So
the last tokens of a long prompt take longer than the first ones, and a few behind a long hit more
than as many alone.

The service time of a prompt is what its first token took from when nobody was before it: from its
booking, or from the first token of the one before. So waiting is never mistaken for slowness, and
prompts that an engine computes in one step share what that step took. What a prompt passes through
before it can be in a step (the host's work, the network) goes on beside the step before: only those
that waited for none show it.

A ridge regression whose past fades: each sample weighs by the inverse square of the time that the
prior gives it, so that relative errors count alike for short and long prompts, and the prior never
fades, so that few or one-sided samples stay near it, or near it times how much faster or slower
the whole of it is seen to be. What is known of prompts of one size fades
only by newer ones of about that size: hours of conversations, of which little is left to compute
each time, say nothing of what a long prompt costs, and must not make it forgotten. Formula:
Bayesian linear regression with known noise, A = Λ + Σ w x xᵀ, b = Λ θ₀ + Σ w x y, θ = A⁻¹ b; a
sample takes DECAY off those of its own size class in A and b.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import mul
from typing import Final

from msgspec import Struct

from router.index.load import pairs_of


class Ttft(Struct, frozen=True, gc=False):
    """Milliseconds: fixed, per uncached token, per request that decodes beside it, per reused
    token (hashing, block tables, reading its keys and values). `host_ms`: the part of the fixed
    ones that passes before a step, so that prompts behind need not wait for it. `ms_per_mpair`: per
    million pairs of tokens; see `pairs_of`."""

    base_ms: float = 20.0
    ms_per_token: float = 0.1
    ms_per_running: float = 0.5
    ms_per_hit_token: float = 0.002
    host_ms: float = 10.0
    ms_per_mpair: float = 0.0

    def scaled(self, factor: float) -> "Ttft":
        return Ttft(
            factor * self.base_ms,
            factor * self.ms_per_token,
            factor * self.ms_per_running,
            factor * self.ms_per_hit_token,
            factor * self.host_ms,
            factor * self.ms_per_mpair,
        )

    def step_ms(self, running: int) -> float:
        """What a step takes in which that many decode, beside the prompts that it computes."""
        return max(self.base_ms - self.host_ms, 0.0) + running * self.ms_per_running

    def computing_ms(self, uncached_tokens: int, hit_tokens: int = 0) -> float:
        """How long a prompt keeps the engine from the next one.

        Reused tokens take their own request time, but nobody else's: an engine looks up and hashes
        the hits of one step beside each other.
        """
        reach = hit_tokens + uncached_tokens / 2
        return uncached_tokens * (self.ms_per_token + reach * self.ms_per_mpair / MILLION)

    def queued_ms(self, tokens: int, pairs: int) -> float:
        """The same of several prompts together."""
        return tokens * self.ms_per_token + pairs * self.ms_per_mpair / MILLION

    def reusing_ms(self, hit_tokens: int) -> float:
        """What a hit takes."""
        # Whatever was learnt: to reuse a token never takes longer than to compute it.
        each = self.ms_per_hit_token
        return hit_tokens * (each if each < self.ms_per_token else self.ms_per_token)

    def predict_ms(
        self, uncached_tokens: int, wait_ms: float, running: int, hit_tokens: int = 0
    ) -> float:
        """Time to the first token of a prompt that finds `wait_ms` of others' work ahead."""
        own_ms = self.computing_ms(uncached_tokens, hit_tokens) + self.reusing_ms(hit_tokens)
        return self.base_ms + own_ms + wait_ms + running * self.ms_per_running


class Sample(Struct, frozen=True, gc=False, array_like=True):
    """A prompt that was computed, or several in one step: what had to be computed, beside how many
    that decode. `pairs`: as of one prompt, if it isn't told."""

    uncached_tokens: int
    hit_tokens: int
    running: int
    service_ms: float
    is_alone: bool = True
    """Nobody was before it."""
    pairs: int | None = None


MILLION: Final = 1e6
PRIOR: Final = Ttft(ms_per_mpair=2.0)
"""Attention takes a quarter of the time of a prompt of 33,000 tokens: in between what models of 8B
and 70B show."""
DECAY: Final = 0.96
"""A sample's weight after each later one of its size: the last 25 or so of each size count."""
SIZES: Final = 12
"""Classes of uncached tokens: below 32, and then by doubling, up to 32,768 and more."""
_SMALLEST_BITS: Final = 5
PRIOR_WEIGHT: Final = 4e-4
"""How fast the prior is as a whole is believed to a factor of ten, a sample to a fifth:
(0.2 / 10)²."""
TOKEN_WEIGHT: Final = 0.25
"""And what a token and a pair take beside the rest, to two fifths: (0.2 / 0.4)². An engine that is
slow at one thing is slow at the others. Where all prompts leave equally much to compute, nothing
else tells a token's time from what is fixed, and long ones would be predicted by noise."""
TOKENS_UNIT: Final = 1000.0
FIRST_SAMPLES: Final = 8
"""Before a fleet has shown so much, nothing is a surprise."""
SURE_SAMPLES: Final = 64
SOLVED_EVERY: Final = 4
"""After so many samples one more says little, and solving takes most of what a sample costs."""
SURPRISE: Final = 4.0
"""A time beyond so many times the predicted one counts less, by the square of how far beyond: a
queue that waits for memory says little about computing. A fleet that did slow down is believed
all the same, when most samples say so."""


FEATURES: Final = 6
_BELIEFS: Final = (
    PRIOR_WEIGHT, TOKEN_WEIGHT, PRIOR_WEIGHT, PRIOR_WEIGHT, PRIOR_WEIGHT, TOKEN_WEIGHT,
)  # fmt: skip
_UPPER: Final = [(row, column) for row in range(FEATURES) for column in range(row, FEATURES)]
SUMS: Final = len(_UPPER) + FEATURES
_NOTHING: Final = [0.0] * SUMS


@dataclass(slots=True)
class TtftModel:
    """One fleet's regression. `observe` costs some 20 µs; `ttft` is the current estimate (of all
    samples but the last few).

    Sums are flat lists: the upper half of w x xᵀ row by row, then w x y.
    """

    prior: Ttft = PRIOR
    ttft: Ttft = field(init=False)
    samples: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0] * SUMS)
    _of_size: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.ttft = self.prior

    def observe(self, sample: Sample) -> None:
        """A prompt was computed."""
        weight = 1.0 / max(predicted_ms(self.prior, sample), 1.0) ** 2
        if self.samples >= FIRST_SAMPLES:
            expected = SURPRISE * predicted_ms(self.ttft, sample)
            weight *= min(1.0, expected / max(sample.service_ms, 1.0)) ** 2
        x, y = _features(sample), sample.service_ms
        products = [x[row] * x[column] for row, column in _UPPER]
        products += [value * y for value in x]
        size = size_class(sample.uncached_tokens)
        before = self._of_size.get(size, _NOTHING)
        after = [
            DECAY * old + weight * product for old, product in zip(before, products, strict=True)
        ]
        self._of_size[size] = after
        self._sums = [
            total + new - old for total, new, old in zip(self._sums, after, before, strict=True)
        ]
        self.samples += 1
        if self.samples <= SURE_SAMPLES or self.samples % SOLVED_EVERY == 0:
            self.ttft = self._solve()

    def _solve(self) -> Ttft:
        a = [[0.0] * FEATURES for _ in range(FEATURES)]
        for (row, column), total in zip(_UPPER, self._sums, strict=False):
            a[row][column] = a[column][row] = total
        b = self._sums[len(_UPPER) :]
        prior = _parameters(self.prior)
        scale = _scale(a, b, prior)
        for row, value in enumerate(prior):
            # samples were weighed by the prior's times, so these are too, whatever the scale
            ridge = _BELIEFS[row] / max(value, 1e-6) ** 2
            a[row][row] += ridge
            b[row] += ridge * scale * value
        step, per_unit, running, per_hit_unit, host, per_mpair = _solve_not_negative(a, b)
        return Ttft(
            step + host,
            max(per_unit / TOKENS_UNIT, 0.01 * self.prior.ms_per_token),
            running,
            per_hit_unit / TOKENS_UNIT,
            host,
            per_mpair,
        )


def _scale(a: list[list[float]], b: list[float], prior: Sequence[float]) -> float:
    """How many times slower than the prior all of it is: its own regression, one parameter."""
    along = sum(value * sum(map(mul, row, prior)) for value, row in zip(prior, a, strict=True))
    scale: float = (sum(map(mul, prior, b)) + PRIOR_WEIGHT) / (along + PRIOR_WEIGHT)
    return max(scale, 1e-3)


def size_class(uncached_tokens: int) -> int:
    """Prompts of one class make each other's past fade."""
    bits = max(uncached_tokens, 0).bit_length()
    return min(max(bits - _SMALLEST_BITS, 0), SIZES - 1)


def _features(sample: Sample) -> tuple[float, ...]:
    return (
        1.0,
        sample.uncached_tokens / TOKENS_UNIT,
        float(sample.running),
        sample.hit_tokens / TOKENS_UNIT,
        float(sample.is_alone),
        _pairs(sample) / MILLION,
    )


def _parameters(ttft: Ttft) -> tuple[float, ...]:
    """What `_features` are multiplied with."""
    return (
        ttft.base_ms - ttft.host_ms,
        ttft.ms_per_token * TOKENS_UNIT,
        ttft.ms_per_running,
        ttft.ms_per_hit_token * TOKENS_UNIT,
        ttft.host_ms,
        ttft.ms_per_mpair,
    )


def _pairs(sample: Sample) -> int:
    if sample.pairs is not None:
        return sample.pairs
    return pairs_of(sample.hit_tokens, sample.hit_tokens + sample.uncached_tokens)


def predicted_ms(ttft: Ttft, sample: Sample) -> float:
    """What the sample would have taken."""
    base_ms = ttft.base_ms if sample.is_alone else ttft.base_ms - ttft.host_ms
    own_ms = ttft.queued_ms(sample.uncached_tokens, _pairs(sample))
    own_ms += ttft.reusing_ms(sample.hit_tokens)
    return base_ms + own_ms + sample.running * ttft.ms_per_running


def _solve_not_negative(a: list[list[float]], b: list[float]) -> list[float]:
    """The least squares whose parameters are none below zero.

    Nothing takes less than no time. One that would is left out and the others are solved for anew:
    were it only cut off at zero, they would still make up for what it takes away. The lowest goes
    first, in its own unit; that is not always the best set, but with six it nearly is.
    """
    used = list(range(len(b)))
    found = [0.0] * len(b)
    while used:
        solution = _solve_positive([[a[i][k] for k in used] for i in used], [b[i] for i in used])
        shares = [value * math.sqrt(a[i][i]) for i, value in zip(used, solution, strict=True)]
        if (lowest := min(shares)) >= 0.0:
            for i, value in zip(used, solution, strict=True):
                found[i] = value
            return found
        del used[shares.index(lowest)]
    return found


def _solve_positive(a: list[list[float]], b: list[float]) -> list[float]:
    """Solve a positive definite system by elimination; no pivots are needed. Destroys it."""
    size = len(b)
    for pivot in range(size):
        for row in range(pivot + 1, size):
            factor = a[row][pivot] / a[pivot][pivot]
            for column in range(pivot, size):
                a[row][column] -= factor * a[pivot][column]
            b[row] -= factor * b[pivot]
    solution = [0.0] * size
    for row in reversed(range(size)):
        known = sum(a[row][k] * solution[k] for k in range(row + 1, size))
        solution[row] = (b[row] - known) / a[row][row]
    return solution

"""How long a replica takes to its first token, learnt from what it has shown.

TTFT ≈ base + per_token · (uncached tokens ahead and own) + per_running · (requests that decode)

A ridge regression whose past fades: each sample weighs by the inverse square of the time that the
prior gives it, so that relative errors count alike for short and long prompts, and the prior never
fades, so that few or one-sided samples stay near it. Formula: Bayesian linear
regression with known noise, A = Λ + Σ w x xᵀ, b = Λ θ₀ + Σ w x y, θ = A⁻¹ b, with A − Λ and
b − Λ θ₀ decayed.
"""

import math
from dataclasses import dataclass, field
from typing import Final

from router.replicas import ReplicaId


@dataclass(frozen=True, slots=True)
class Ttft:
    """Milliseconds: fixed, per uncached token, per request that decodes beside it."""

    base_ms: float = 20.0
    ms_per_token: float = 0.1
    ms_per_running: float = 0.5

    def scaled(self, factor: float) -> "Ttft":
        return Ttft(factor * self.base_ms, factor * self.ms_per_token, factor * self.ms_per_running)

    def predict_ms(self, uncached_tokens: int, wait_ms: float, running: int) -> float:
        """Time to the first token of a prompt that finds `wait_ms` of others' work ahead."""
        return (
            self.base_ms
            + wait_ms
            + uncached_tokens * self.ms_per_token
            + running * self.ms_per_running
        )


PRIOR: Final = Ttft()
DECAY: Final = 0.98
"""A sample's weight after each later one: the last 50 or so count."""
PRIOR_WEIGHT: Final = 4e-4
"""The prior's parameters are believed to a factor of ten, a sample to a fifth: (0.2 / 10)²."""
TOKENS_UNIT: Final = 1000.0
PACE_DECAY: Final = 0.95
"""The same for a replica's factor: the last 20 or so count."""
PACE_PRIOR_SAMPLES: Final = 10.0
"""So many samples' worth of belief that a replica is like its fleet."""
FIRST_SAMPLES: Final = 8
"""Before a fleet has shown so much, no replica is told apart."""
MOST_OFF: Final = 8.0


@dataclass(slots=True)
class TtftModel:
    """One fleet's regression. `observe` costs some µs; `ttft` is the current estimate."""

    prior: Ttft = PRIOR
    ttft: Ttft = field(init=False)
    samples: int = 0
    _a: list[float] = field(default_factory=lambda: [0.0] * 6)
    _b: list[float] = field(default_factory=lambda: [0.0] * 3)

    def __post_init__(self) -> None:
        self.ttft = self.prior

    def observe(self, work_tokens: int, running: int, ttft_ms: float) -> None:
        """A first token came after `ttft_ms`; `work_tokens` were to be computed until then."""
        x = (1.0, work_tokens / TOKENS_UNIT, float(running))
        weight = 1.0 / max(self.prior.predict_ms(work_tokens, 0.0, running), 1.0) ** 2
        pairs = ((0, 0), (0, 1), (0, 2), (1, 1), (1, 2), (2, 2))
        self._a = [
            DECAY * a + weight * x[i] * x[j] for a, (i, j) in zip(self._a, pairs, strict=True)
        ]
        self._b = [DECAY * b + weight * v * ttft_ms for b, v in zip(self._b, x, strict=True)]
        self.samples += 1
        self.ttft = self._solve()

    def _solve(self) -> Ttft:
        prior = (
            self.prior.base_ms,
            self.prior.ms_per_token * TOKENS_UNIT,
            self.prior.ms_per_running,
        )
        a, b = list(self._a), list(self._b)
        for row, (diagonal, value) in enumerate(zip((0, 3, 5), prior, strict=True)):
            ridge = PRIOR_WEIGHT / max(value, 1e-6) ** 2
            a[diagonal] += ridge
            b[row] += ridge * value
        base, per_unit, running = _solve_symmetric(a, b)
        return Ttft(
            max(base, 0.0),
            max(per_unit / TOKENS_UNIT, 0.01 * self.prior.ms_per_token),
            max(running, 0.0),
        )


def _solve_symmetric(a: list[float], b: list[float]) -> tuple[float, float, float]:
    """Solve a 3×3 system by Cramer's rule; `a`: the upper triangle, row by row."""
    a00, a01, a02, a11, a12, a22 = a
    c00, c01, c02 = a11 * a22 - a12 * a12, a02 * a12 - a01 * a22, a01 * a12 - a02 * a11
    c11, c12, c22 = a00 * a22 - a02 * a02, a01 * a02 - a00 * a12, a00 * a11 - a01 * a01
    determinant = a00 * c00 + a01 * c01 + a02 * c02
    return (
        (c00 * b[0] + c01 * b[1] + c02 * b[2]) / determinant,
        (c01 * b[0] + c11 * b[1] + c12 * b[2]) / determinant,
        (c02 * b[0] + c12 * b[1] + c22 * b[2]) / determinant,
    )


@dataclass(slots=True)
class _Pace:
    """How much slower than its fleet a replica is: a mean of logarithms that starts from 0."""

    total: float = 0.0
    weight: float = PACE_PRIOR_SAMPLES

    @property
    def factor(self) -> float:
        return math.exp(self.total / self.weight)

    def observe(self, ratio: float) -> None:
        step = math.log(min(max(ratio, 1 / MOST_OFF), MOST_OFF))
        self.total = PACE_DECAY * self.total + step
        self.weight = PACE_DECAY * (self.weight - PACE_PRIOR_SAMPLES) + PACE_PRIOR_SAMPLES + 1


@dataclass(slots=True)
class Speeds:
    """What replicas have shown of their speed: one model per fleet, one factor per replica.

    Replicas of one model are mostly alike, and each alone shows too little, under too little
    variety of load, to tell its three parameters apart. So all of a fleet's replies teach one
    regression, and each replica only how much slower or faster than it is (a factor, drawn to 1).
    `fleet`: any name that says which replicas are alike (the base model's).
    """

    _fleets: dict[str, TtftModel] = field(default_factory=dict)
    _paces: dict[ReplicaId, _Pace] = field(default_factory=dict)

    def of(self, replica_id: ReplicaId, fleet: str) -> Ttft:
        """The replica's estimate; one that has shown nothing is like its fleet."""
        model, pace = self._fleets.get(fleet), self._paces.get(replica_id)
        ttft = model.ttft if model is not None else PRIOR
        return ttft.scaled(pace.factor) if pace is not None else ttft

    def observe(
        self, replica_id: ReplicaId, fleet: str, work_tokens: int, running: int, ttft_ms: float
    ) -> None:
        """A first token came after `ttft_ms`; `work_tokens` were to be computed until then."""
        model = self._fleets.setdefault(fleet, TtftModel())
        pace = self._paces.setdefault(replica_id, _Pace())
        if model.samples >= FIRST_SAMPLES:
            wait_ms = work_tokens * model.ttft.ms_per_token
            pace.observe(ttft_ms / max(model.ttft.predict_ms(0, wait_ms, running), 1.0))
        model.observe(work_tokens, running, ttft_ms / pace.factor)

    def forget(self, replica_id: ReplicaId) -> None:
        """The replica left; what it taught its fleet stays."""
        self._paces.pop(replica_id, None)

"""How long a replica takes to its first token, learnt from what it has shown.

TTFT ≈ base + per_token · (uncached tokens ahead and own) + per_running · (requests that decode)

A ridge regression whose past fades: each sample weighs by the inverse square of the time that the
prior gives it, so that relative errors count alike for short and long prompts, and the prior never
fades, so that a replica with few or one-sided samples stays near it. Formula: Bayesian linear
regression with known noise, A = Λ + Σ w x xᵀ, b = Λ θ₀ + Σ w x y, θ = A⁻¹ b, with A − Λ and
b − Λ θ₀ decayed.
"""

from dataclasses import dataclass, field
from typing import Final

from router.replicas import ReplicaId


@dataclass(frozen=True, slots=True)
class Ttft:
    """Milliseconds: fixed, per uncached token, per request that decodes beside it."""

    base_ms: float = 20.0
    ms_per_token: float = 0.1
    ms_per_running: float = 0.5

    def predict_ms(self, uncached_tokens: int, wait_ms: float, running: int) -> float:
        """Time to the first token of a prompt that finds `wait_ms` of others' work ahead."""
        return (
            self.base_ms
            + wait_ms
            + uncached_tokens * self.ms_per_token
            + running * self.ms_per_running
        )


PRIOR: Final = Ttft()
DECAY: Final = 0.97
"""A sample's weight after each later one: the last 30 or so count."""
PRIOR_WEIGHT: Final = 4e-4
"""The prior's parameters are believed to a factor of ten, a sample to a fifth: (0.2 / 10)²."""
TOKENS_UNIT: Final = 1000.0


@dataclass(slots=True)
class TtftModel:
    """One replica's regression. `observe` costs some µs; `ttft` is the current estimate."""

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
class Speeds:
    """What each replica has shown of its speed. A new one starts from the mean of the others."""

    _models: dict[ReplicaId, TtftModel] = field(default_factory=dict)

    def of(self, replica_id: ReplicaId) -> Ttft:
        return self._model(replica_id).ttft

    def observe(
        self, replica_id: ReplicaId, work_tokens: int, running: int, ttft_ms: float
    ) -> None:
        """A first token came; see `TtftModel.observe`."""
        self._model(replica_id).observe(work_tokens, running, ttft_ms)

    def forget(self, replica_id: ReplicaId) -> None:
        self._models.pop(replica_id, None)

    def _model(self, replica_id: ReplicaId) -> TtftModel:
        model = self._models.get(replica_id)
        if model is None:
            model = self._models[replica_id] = TtftModel(self._mean())
        return model

    def _mean(self) -> Ttft:
        shown = [model.ttft for model in self._models.values() if model.samples]
        if not shown:
            return PRIOR
        return Ttft(
            sum(t.base_ms for t in shown) / len(shown),
            sum(t.ms_per_token for t in shown) / len(shown),
            sum(t.ms_per_running for t in shown) / len(shown),
        )

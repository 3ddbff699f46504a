"""How long a step takes: the timing model of a GPU and a model, read from a data file.

    step_ms = t0 + a·B + b·T + Σ over prefill chunks (c·n + d·n·(2·context + n)) + e·H

B: sequences that decode in this step; T: KV tokens that they read; n: tokens of a chunk behind
`context` computed ones; H: prompt tokens found in the cache by a sequence admitted in this step,
the most of any: hits delay their own first token, and are looked up beside each other.
Each request also waits h before it can be scheduled.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import msgspec

from workers.engine.scheduler import Share, Step

FOLDER: Final = Path(__file__).with_name("profiles")


class Profile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine's speed and size. Times in milliseconds of modelled time."""

    name: str
    basis: str
    """Where the figures come from: measured, fitted or estimated."""
    step_ms: float
    """t0"""
    decode_ms_per_sequence: float
    """a"""
    decode_ms_per_kv_token: float
    """b"""
    prefill_ms_per_token: float
    """c"""
    prefill_ms_per_token_squared: float
    """d"""
    prefill_step_ms: float = 0.0
    """Added to t0 in steps that compute prompt tokens."""
    cached_ms_per_token: float = 0.0
    """e: hashing and block tables"""
    host_ms: float = 0.0
    """h"""
    kv_tokens: int
    max_model_len: int
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 256

    def duration_s(self, step: Step) -> float:
        """Modelled seconds that this step takes."""
        hits = max((seq.computed for seq in step.admitted), default=0)
        return self.time_ms(step.shares, hits) / 1000.0

    def time_ms(self, shares: Iterable[Share], hit_tokens: int = 0) -> float:
        """The formula above."""
        total = self.step_ms + self.cached_ms_per_token * hit_tokens
        prefills = False
        for share in shares:
            if share.tokens == 1 and share.context:
                total += self.decode_ms_per_sequence + self.decode_ms_per_kv_token * share.context
                continue
            prefills = True
            total += self.prefill_ms_per_token * share.tokens
            reach = 2 * share.context + share.tokens
            total += self.prefill_ms_per_token_squared * share.tokens * reach
        return total + self.prefill_step_ms * prefills


def profile_names() -> list[str]:
    """The profiles that ship with the engine."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load_profile(name: str) -> Profile:
    """A profile by name, or from a YAML file whose path ends in .yaml. ValueError if it is none."""
    path = Path(name) if name.endswith(".yaml") else FOLDER / f"{name}.yaml"
    try:
        return msgspec.yaml.decode(path.read_bytes(), type=Profile)
    except FileNotFoundError as exc:
        raise ValueError(f"no profile {name!r}; there are {', '.join(profile_names())}") from exc
    except msgspec.ValidationError as exc:
        raise ValueError(f"profile {name}: {exc}") from exc

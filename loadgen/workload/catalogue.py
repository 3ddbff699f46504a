"""All workloads by name: what each is for, and what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import MISSING, Field, dataclass, fields
from typing import Any, Final

from loadgen.text import Prose
from loadgen.workload.agent import Agent, AgentOptions
from loadgen.workload.multi_turn import MultiTurn, MultiTurnOptions
from loadgen.workload.protocol import Workload
from loadgen.workload.single import (
    HotPrefix,
    HotPrefixOptions,
    LongDocument,
    LongDocumentOptions,
    Rag,
    RagOptions,
    SharedPrefix,
    SharedPrefixOptions,
    TimestampInFront,
    TimestampOptions,
    Unique,
    UniqueOptions,
)
from loadgen.workload.trace import Trace, TraceFile, TraceOptions

TRACE: Final = "trace"


@dataclass(frozen=True, slots=True)
class Kind:
    """A workload's class, and the class of its options."""

    make: Any
    options: Any

    @property
    def summary(self) -> str:
        """One sentence."""
        return (inspect.getdoc(self.make) or "").splitlines()[0]

    def defaults(self) -> Mapping[str, object]:
        """Option → what it is if nobody says otherwise; without what all workloads have."""
        return {f.name: _default(f) for f in fields(self.options) if f.name not in _COMMON}


KINDS: Final[dict[str, Kind]] = {
    "multi-turn": Kind(MultiTurn, MultiTurnOptions),
    "shared-prefix": Kind(SharedPrefix, SharedPrefixOptions),
    "agent": Kind(Agent, AgentOptions),
    "rag": Kind(Rag, RagOptions),
    "long-document": Kind(LongDocument, LongDocumentOptions),
    "hot-prefix": Kind(HotPrefix, HotPrefixOptions),
    "timestamp-in-front": Kind(TimestampInFront, TimestampOptions),
    "unique": Kind(Unique, UniqueOptions),
    TRACE: Kind(Trace, TraceOptions),
}
_COMMON: Final = ("requests", "arrivals")


@dataclass(frozen=True, slots=True)
class Recipe:
    """Everything but the text: with words and a salt it becomes a workload. Can be pickled, so
    that worker processes make the same one."""

    kind: str
    options: Any
    file: TraceFile | None = None

    def __call__(self, prose: Prose, salt: str) -> Workload:
        make = KINDS[self.kind].make
        if self.kind == TRACE:
            made: Workload = make(self.file, self.options, prose, salt)
        else:
            made = make(self.options, prose, salt)
        return made


def _default(field: Field[Any]) -> object:
    return None if field.default is MISSING else field.default

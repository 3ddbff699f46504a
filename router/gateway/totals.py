"""Metrics of several processes as those of one.

What counts up is added up, and goes on counting when a process is started over: what an ended one
had counted, as of its last scrape, stays in the sum. Of gauges, those that each process has a
share of are added up; the others are what every process says, and the highest is taken.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from prometheus_client.parser import text_string_to_metric_families

Key: TypeAlias = tuple[str, tuple[tuple[str, str], ...]]
"""A sample's name and its labels."""

SHARES: Final = frozenset(
    {
        "warmgate_replica_in_flight",
        "warmgate_replica_queued_tokens",
        "warmgate_queue_requests",
        "warmgate_index_bytes",
        "warmgate_index_max_bytes",
        "warmgate_tokenizer_memo_bytes",
        "warmgate_tokenizer_stuck_threads",
    }
)
"""Gauges of which each process has a share."""


@dataclass(slots=True)
class Family:
    """One metric: how it is announced, and its samples."""

    help: str
    kind: str
    samples: dict[Key, float] = field(default_factory=dict)

    @property
    def counts_up(self) -> bool:
        return self.kind in ("counter", "histogram", "summary")


Scrape: TypeAlias = dict[str, Family]


@dataclass(slots=True)
class Totals:
    """What was scraped last of each process' life, by slot, and what ended ones had counted."""

    _latest: dict[int, tuple[int, Scrape]] = field(default_factory=dict)
    _ended: Scrape = field(default_factory=dict)

    def learn(self, slot: int, pid: int, text: str) -> None:
        """A scrape of the process that has the slot now."""
        if (known := self._latest.get(slot)) is not None and known[0] != pid:
            _merge(self._ended, {n: f for n, f in known[1].items() if f.counts_up})
        self._latest[slot] = pid, parse(text)

    def text(self) -> str:
        """All of it in Prometheus' text format, version 0.0.4."""
        families: Scrape = {}
        for scrape in (*(scrape for _, scrape in self._latest.values()), self._ended):
            _merge(families, scrape)
        return "".join(line for name in families for line in _lines(name, families[name]))


def parse(text: str) -> Scrape:
    """When a process' counters began says nothing of the whole: `_created` is left out."""
    scrape: Scrape = {}
    for found in text_string_to_metric_families(text):
        if found.name.endswith("_created"):
            continue
        name = f"{found.name}_total" if found.type == "counter" else found.name
        samples = {(s.name, tuple(s.labels.items())): float(s.value) for s in found.samples}
        scrape[name] = Family(found.documentation, found.type, samples)
    return scrape


def _merge(into: Scrape, more: Scrape) -> None:
    for name, family in more.items():
        whole = into.setdefault(name, Family(family.help, family.kind))
        is_sum = family.counts_up or name in SHARES
        (_add if is_sum else _raise)(whole.samples, family.samples)


def _add(into: dict[Key, float], more: Mapping[Key, float]) -> None:
    for key, value in more.items():
        into[key] = into.get(key, 0.0) + value


def _raise(into: dict[Key, float], more: Mapping[Key, float]) -> None:
    for key, value in more.items():
        into[key] = max(into.get(key, value), value)


def _lines(name: str, family: Family) -> Iterator[str]:
    yield f"# HELP {name} {_escaped(family.help)}\n# TYPE {name} {family.kind}\n"
    for (sample, labels), value in family.samples.items():
        pairs = ",".join(f'{k}="{_escaped(v, quote=True)}"' for k, v in labels)
        yield f"{sample}{{{pairs}}} {value!r}\n" if pairs else f"{sample} {value!r}\n"


def _escaped(text: str, *, quote: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text

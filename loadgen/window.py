"""Which part of a run counts: the load builds up at its beginning and dies away at its end."""

from __future__ import annotations

from dataclasses import dataclass

from loadgen.runner import RunResult


@dataclass(frozen=True, slots=True)
class Window:
    """Left out: requests due in the first `warmup_s`, the first `warmup_requests`, and those due
    in the last `cooldown_s` of the schedule. They are sent like all others."""

    warmup_s: float = 0.0
    warmup_requests: int = 0
    cooldown_s: float = 0.0

    @property
    def is_whole(self) -> bool:
        return not (self.warmup_s or self.warmup_requests or self.cooldown_s)

    def of(self, result: RunResult) -> RunResult:
        """The same run with the counted records only; its duration is theirs."""
        if self.is_whole or not result.records:
            return result
        ordered = sorted(result.records, key=lambda record: record.scheduled_s)
        until_s = ordered[-1].scheduled_s - self.cooldown_s
        kept = [
            record
            for record in ordered[self.warmup_requests :]
            if self.warmup_s <= record.scheduled_s and record.scheduled_s <= until_s
        ]
        start_s = kept[0].scheduled_s if kept else 0.0
        end_s = max((record.end_s for record in kept), default=0.0)
        return RunResult(
            planned=result.planned - (len(result.records) - len(kept)),
            records=kept,
            prompts={r.number: said for r in kept if (said := result.prompts.get(r.number))},
            late_s=result.late_s,
            cpu_s=result.cpu_s,
            events=result.events,
            whole_s=result.duration_s,
            duration_s=end_s - start_s,
            is_stopped=result.is_stopped,
        )

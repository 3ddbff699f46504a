"""What a choice costs, in milliseconds."""

from collections.abc import Sequence

from msgspec import Struct

from router.routing.query import Candidate, RouteQuery

BUSIEST = 0.9
"""What is measured as busier than this counts as this: nobody knows how full a full queue is."""
SHARE_BOUND = 1.25
"""A replica that is busier than so many times the mean got more than its share."""


def uncached_tokens(query: RouteQuery, candidate: Candidate) -> int:
    """Prompt tokens that the replica would have to compute. Engines always compute the last one."""
    return max(query.prompt_tokens - candidate.hit_tokens, min(1, query.prompt_tokens))


def computing_ms(query: RouteQuery, candidate: Candidate) -> float:
    """How long the prompt keeps the replica busy."""
    uncached, ttft = uncached_tokens(query, candidate), candidate.ttft
    return ttft.computing_ms(uncached) + ttft.reusing_ms(query.prompt_tokens - uncached)


def predicted_ttft_ms(query: RouteQuery, candidate: Candidate) -> float:
    """When this prompt's first token would come."""
    uncached = uncached_tokens(query, candidate)
    wait_ms = candidate.wait_ms + candidate.memory_wait_ms
    wait_ms += candidate.distance_ms + candidate.load_ms
    hit_tokens = query.prompt_tokens - uncached
    return candidate.ttft.predict_ms(uncached, wait_ms, candidate.running, hit_tokens)


AGAIN = 0.2
"""Computing what another replica is computing already costs others at least such a share of it."""


class Surroundings(Struct, frozen=True, gc=False):
    """What is normal in the fleet. `busy`: mean share of time that replicas computed of late;
    `queueing`: share of them that have prompts to compute now; `coming_tokens`: the most of this
    prompt that one of them is computing for somebody else."""

    busy: float
    queueing: float
    coming_tokens: int = 0

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Surroundings":
        count = len(candidates)
        queueing = sum(c.in_flight > c.running for c in candidates)
        coming = max(c.hit_tokens if c.expected_tokens > 0 else 0 for c in candidates)
        return cls(sum(c.busy for c in candidates) / count, queueing / (count + 1), coming)


def social_cost_ms(query: RouteQuery, candidate: Candidate, around: Surroundings) -> float:
    """Predicted TTFT, and the time that computing and memory take from others.

    The request behind this one waits for its computing; and the busier the fleet, the more
    requests there are that do: in an M/G/1 queue a job of length s delays others by about
    s · ρ / (1 - ρ). So computing counts 1 + ρ / (1 - ρ) = 1 / (1 - ρ) times beyond the TTFT. A
    prompt that leaves the replica which holds it saves its own waiting and costs the fleet a second
    prefill: it stays until waiting there costs more than two prefills elsewhere.

    What another replica is computing at this moment costs at least a fifth more, however idle the
    fleet is: how busy replicas were of late knows nothing yet of a burst of equal prompts, and each
    that leaves to be there a little sooner is a prefill and a copy that nobody needs.

    Memory is a queue of the same kind: a request that holds the share f of a cache for its answer's
    D ms takes f · D of it, and delays others by f · D · ρ / (1 - ρ) with ρ the share that is held.
    That is nothing until caches fill, and then it keeps prompts that share a beginning together:
    spread, each copy of it takes room from other requests.

    While its answer is decoded, each request that follows there finds one more that decodes. By
    Little's law those are as many as decode there now, so that term of the TTFT counts twice.

    What follows a prompt follows it to its replica, and will wait there as is usual there. Where
    that is longer than at a replica that got its share, the difference counts too: so a prefix
    that many ask for is copied before its holder drowns.
    """
    return predicted_ttft_ms(query, candidate) + others_ms(query, candidate, around)


def others_ms(query: RouteQuery, candidate: Candidate, around: Surroundings) -> float:
    """What of the cost is other requests' time; see `social_cost_ms`."""
    queueing = around.queueing if candidate.in_flight > candidate.running else 0.0
    delays = _queue((around.busy + queueing) / 2.0)
    computing = computing_ms(query, candidate) * delays
    again = candidate.ttft.computing_ms(max(0, around.coming_tokens - candidate.hit_tokens))
    computing += again * max(0.0, AGAIN - delays)
    memory = candidate.memory_ms * _queue(candidate.full)
    usual = _queue(SHARE_BOUND * around.busy)
    following = candidate.mean_ms * max(0.0, _queue(candidate.busy) - usual)
    decoding = candidate.running * candidate.ttft.ms_per_running
    return computing + memory + decoding + following


def _queue(busy: float) -> float:
    """Requests that wait, in the mean, at what is busy for that share of its time."""
    busy = min(busy, BUSIEST)
    return busy / (1.0 - busy)

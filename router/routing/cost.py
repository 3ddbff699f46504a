"""What a choice costs, in milliseconds."""

from collections.abc import Sequence
from typing import Final

from msgspec import Struct

from router.routing.query import Candidate, RouteQuery

BUSIEST = 0.9
"""What is measured as busier than this counts as this: nobody knows how full a full queue is."""
SHARE_BOUND = 1.25
"""A replica that is busier than so many times the mean got more than its share."""


def uncached_tokens(query: RouteQuery, candidate: Candidate) -> int:
    """Prompt tokens that the replica would have to compute. Engines always compute the last one."""
    prompt_tokens = query.prompt_tokens
    uncached = prompt_tokens - candidate.hit_tokens
    return uncached if uncached > 0 else min(1, prompt_tokens)


def computing_ms(query: RouteQuery, candidate: Candidate) -> float:
    """How long the prompt keeps the replica busy."""
    uncached, ttft = uncached_tokens(query, candidate), candidate.ttft
    reused = query.prompt_tokens - uncached
    return ttft.computing_ms(uncached, reused) + ttft.reusing_ms(reused)


AGAIN = 0.2
"""Computing what another replica is computing already costs others at least such a share of it."""
ONCE_MORE = 1.0
"""The same where two compute it already, and one of them has little else to do: for a third time
there is no other reason than that waiting was predicted to take too long."""
LITTLE_ELSE = 0.05
"""In tokens, as a share of what is computed already: those are counted, not predicted."""


class Surroundings(Struct, frozen=True, gc=False):
    """What is normal in the fleet. `busy`: mean share of time that replicas computed of late;
    `queueing`: share of them that have prompts to compute now; `coming_tokens`: the most of this
    prompt that one of them is computing for somebody else.

    What follows from these for every replica is worked out once: `delays`, and with what waits now
    `delays_behind`, are requests that wait for what is computed; `usual` those at a replica that
    got its share of late, and at most.
    """

    busy: float
    queueing: float
    coming_tokens: int = 0
    delays: float = 0.0
    delays_behind: float = 0.0
    usual: float = 0.0
    in_flight: float = 0.0
    """Requests per replica."""
    most_hit_tokens: int = 0
    """Of this prompt, at one of them."""
    is_copied: bool = False
    """Several are computing `coming_tokens`, and one of them has little else to compute."""

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> "Surroundings":
        total, queueing, in_flight, most, coming = 0.0, 0, 0, 0, 0
        copies, other_tokens = 0, 0
        for c in candidates:
            total += c.busy
            in_flight += (there := c.in_flight)
            if there > c.running:
                queueing += 1
            if (hit := c.hit_tokens) > most:
                most = hit
            if hit >= coming and c.expected_tokens > 0:
                others = c.queued_tokens - c.expected_tokens
                if hit > coming:
                    coming, copies, other_tokens = hit, 0, others
                copies += 1
                if others < other_tokens:
                    other_tokens = others
        count = len(candidates)
        busy, queueing_share = total / count, queueing / (count + 1)
        return cls(
            busy, queueing_share, coming, _queue(busy / 2.0),
            _queue((busy + queueing_share) / 2.0), _queue(SHARE_BOUND * busy),
            in_flight / count, most, copies > 1 and other_tokens < LITTLE_ELSE * coming,
        )  # fmt: skip


def social_cost_ms(query: RouteQuery, candidate: Candidate, around: Surroundings) -> float:
    """Predicted TTFT, and the time that computing and memory take from others.

    The request behind this one waits for its computing; and the busier the fleet, the more
    requests there are that do: in an M/G/1 queue a job of length s delays others by about
    s · ρ / (1 - ρ). So computing counts 1 + ρ / (1 - ρ) = 1 / (1 - ρ) times beyond the TTFT. A
    prompt that leaves the replica which holds it saves its own waiting and costs the fleet a second
    prefill: it stays until waiting there costs more than two prefills elsewhere.

    What another replica is computing at this moment costs at least a fifth more, however idle the
    fleet is: how busy replicas were of late knows nothing yet of a burst of equal prompts, and each
    that leaves to be there a little sooner is a prefill and a copy that nobody needs. What two
    compute already costs twice as much a third time, unless both have other prompts to compute.

    Memory is a queue of the same kind: a request that holds the share f of a cache for its answer's
    D ms takes f · D of it, and delays others by f · D · ρ / (1 - ρ) with ρ the share that is held.
    That is nothing until caches fill, and then it keeps prompts that share a beginning together:
    spread, each copy of it takes room from other requests.

    A cache that is full evicts something else for what it takes in. For what is held nowhere that
    can't be helped; a copy of what another replica holds costs the share of it that prompts reuse
    of what is held, computed once more.

    While its answer is decoded, each request that follows there finds one more that decodes. By
    Little's law those are as many as decode there now, so that term of the TTFT counts twice.

    What follows a prompt follows it to its replica, and will wait there as is usual there. Where
    that is longer than at a replica that got its share, the difference counts too: so a prefix
    that many ask for is copied before its holder drowns.
    """
    return sum(cost_parts_ms(query, candidate, around))


def predicted_ttft_ms(query: RouteQuery, candidate: Candidate) -> float:
    """When this prompt's first token would come."""
    return cost_parts_ms(query, candidate, NOTHING_AROUND)[0]


def others_ms(query: RouteQuery, candidate: Candidate, around: Surroundings) -> float:
    """What of the cost is other requests' time; see `social_cost_ms`."""
    return cost_parts_ms(query, candidate, around)[1]


def cost_parts_ms(
    query: RouteQuery, candidate: Candidate, around: Surroundings
) -> tuple[float, float]:
    """The predicted TTFT, and what of the cost is other requests' time; see `social_cost_ms`."""
    ttft, hit_tokens, prompt_tokens = candidate.ttft, candidate.hit_tokens, query.prompt_tokens
    if hit_tokens >= prompt_tokens > 0:
        hit_tokens = prompt_tokens - 1  # the last one is always computed
    own_ms = ttft.computing_ms(prompt_tokens - hit_tokens, hit_tokens)
    own_ms += ttft.reusing_ms(hit_tokens)
    decoding_ms = candidate.running * ttft.ms_per_running
    delays = around.delays_behind if candidate.in_flight > candidate.running else around.delays
    others_ms = own_ms * delays + decoding_ms
    again_share = ONCE_MORE if around.is_copied else AGAIN
    if around.coming_tokens > hit_tokens and delays < again_share:
        again_ms = ttft.computing_ms(around.coming_tokens - hit_tokens, hit_tokens)
        others_ms += again_ms * (again_share - delays)
    if candidate.evicted and (again_tokens := around.most_hit_tokens - hit_tokens) > 0:
        others_ms += candidate.evicted * ttft.computing_ms(again_tokens, hit_tokens)
    if candidate.memory_ms and candidate.full:
        others_ms += candidate.memory_ms * _queue(candidate.full)
    if candidate.busy > SHARE_BOUND * around.busy:
        others_ms += candidate.mean_ms * (_queue(candidate.busy) - around.usual)
    wait_ms = candidate.wait_ms + candidate.memory_wait_ms
    wait_ms += candidate.distance_ms + candidate.load_ms
    return ttft.base_ms + own_ms + decoding_ms + wait_ms, others_ms


def _queue(busy: float) -> float:
    """Requests that wait, in the mean, at what is busy for that share of its time."""
    if busy > BUSIEST:
        busy = BUSIEST
    return busy / (1.0 - busy)


NOTHING_AROUND: Final = Surroundings(busy=0.0, queueing=0.0)

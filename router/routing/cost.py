"""What a choice costs, in milliseconds."""

from router.routing.query import Candidate, RouteQuery

BUSIEST = 0.9
"""What is measured as busier than this counts as this: nobody knows how full a full queue is."""


def uncached_tokens(query: RouteQuery, candidate: Candidate) -> int:
    """Prompt tokens that the replica would have to compute. Engines always compute the last one."""
    return max(query.prompt_tokens - candidate.hit_tokens, min(1, query.prompt_tokens))


def computing_ms(query: RouteQuery, candidate: Candidate) -> float:
    """How long the prompt keeps the replica busy."""
    return uncached_tokens(query, candidate) * candidate.ttft.ms_per_token


def predicted_ttft_ms(query: RouteQuery, candidate: Candidate) -> float:
    """When this prompt's first token would come."""
    uncached = uncached_tokens(query, candidate)
    return candidate.ttft.predict_ms(uncached, candidate.wait_ms, candidate.running)


def social_cost_ms(query: RouteQuery, candidate: Candidate) -> float:
    """Predicted TTFT, and the time that computing takes from others.

    The request behind this one waits for its computing; and the busier the replica, the more
    requests there are that do: in an M/G/1 queue a job of length s delays others by about
    s · ρ / (1 - ρ). So computing counts 1 + ρ / (1 - ρ) = 1 / (1 - ρ) times beyond the TTFT. A
    prompt that leaves the replica which holds it saves its own waiting and costs the fleet a second
    prefill: it stays until waiting there costs more than two prefills elsewhere. And a new one
    goes where there is room for what will follow.
    """
    others = 1.0 / (1.0 - min(candidate.busy, BUSIEST))
    return predicted_ttft_ms(query, candidate) + others * computing_ms(query, candidate)

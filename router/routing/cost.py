"""What a choice costs, in milliseconds."""

from router.routing.query import Candidate, RouteQuery


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
    """Predicted TTFT, and the time that computing takes from whoever comes next.

    A prompt that leaves the replica which holds it saves its own waiting and costs the fleet a
    second prefill. Counting that prefill once more, for the request behind it, keeps a conversation
    where its blocks are until waiting there costs more than two prefills elsewhere.
    """
    return predicted_ttft_ms(query, candidate) + computing_ms(query, candidate)

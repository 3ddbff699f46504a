"""The section `shared` of the settings."""

from typing import Annotated

from router.setting_types import Seconds, Settings, doc


class SharedSettings(Settings, frozen=True):
    """What several routers agree on, in Redis."""

    url: Annotated[
        str | None,
        doc(
            "Redis of all routers: redis://, rediss:// (TLS), unix://, "
            "redis+sentinel://host,host/master or redis+cluster://host,host; none: no others."
        ),
    ] = None
    prefix: Annotated[str, doc("Begins every key.", min_length=1)] = "warmgate"
    interval_s: Annotated[Seconds, doc("Between two exchanges of load.", ge=0.02)] = 0.15
    busy_interval_s: Annotated[
        Seconds, doc("The same while prompts wait; at most a twentieth of a core.", ge=0.01)
    ] = 0.01
    busy_for_s: Annotated[
        Seconds, doc("And so long after one waited anywhere: the next is told at once.", ge=0)
    ] = 1.0
    news_interval_s: Annotated[
        Seconds,
        doc(
            "Between two pieces of news of what has changed, told at once, at most a twentieth of "
            "a core (then `busy_interval_s` has no use); 0: none.",
            ge=0,
        ),
    ] = 0.002
    ttl_s: Annotated[
        Seconds, doc("A router not heard of for so long has no load any more.", gt=0)
    ] = 2.0
    deadline_ms: Annotated[float, doc("Longest wait for one answer of Redis.", gt=0)] = 100.0
    responses_ttl_s: Annotated[
        Seconds, doc("So long it is known which replica keeps a stored response.", gt=0)
    ] = 3600.0
    max_responses: Annotated[
        int, doc("Stored responses whose replica this router remembers itself.", ge=1)
    ] = 100_000
    sessions_ttl_s: Annotated[
        Seconds, doc("So long it is known where a session was moved to.", gt=0)
    ] = 600.0
    max_sessions: Annotated[int, doc("Moved sessions that this router remembers.", ge=1)] = 100_000
    snapshot_max_bytes: Annotated[
        int,
        doc("Most of the index that is kept there for routers that start; 0: nothing.", ge=0),
    ] = 32 * 2**20
    snapshot_interval_s: Annotated[
        Seconds, doc("Between two copies of it, whichever router makes them.", gt=0)
    ] = 30.0
    board: Annotated[
        str | None, doc("File of the load of this host's processes; --processes makes it.")
    ] = None
    processes: Annotated[int, doc("How many share it.", ge=1, le=64)] = 1
    slot: Annotated[int, doc("Which of them this is, from 0.", ge=0, le=63)] = 0
    turn_tokens: Annotated[
        int,
        doc("One of them at a time places a prompt of which so many are to be computed.", ge=1),
    ] = 1024

"""The settings of the index: what it may take, and where it is."""

from typing import Annotated, Literal

from router.setting_types import Ms, Seconds, Settings
from router.setting_types import doc as _doc


class IndexSettings(Settings, frozen=True):
    """What the index may take, and where it is."""

    max_bytes: Annotated[
        int,
        _doc("Bound of the index, in bytes; a (block, replica) pair takes 30 to 60.", ge=2**20),
    ] = 512 * 2**20
    tiers: Annotated[dict[str, Ms], _doc("Ms to load 1,000 tokens from a slower `medium`.")] = {}
    siblings: Annotated[
        tuple[str, ...], _doc("Base URLs of other routers, to copy the index from at the start.")
    ] = ()
    snapshot_file: Annotated[
        str | None, _doc("File with a copy of the index, read at the start if no sibling answers.")
    ] = None
    snapshot_interval_s: Annotated[Seconds, _doc("Between writings of that file.", gt=0)] = 30.0
    restore_timeout_s: Annotated[
        Seconds, _doc("Longest wait at the start for siblings and replays.", gt=0)
    ] = 10.0
    mode: Annotated[
        Literal["auto", "local", "shared"],
        _doc("local: one per process; shared: one for all routers; auto: see router/central."),
    ] = "auto"
    address: Annotated[
        str | None,
        _doc("Of the central index: tcp://HOST:PORT or unix:PATH; none: --processes runs one."),
    ] = None
    token_file: Annotated[
        str | None, _doc("File with a secret that it and its routers share; none: no secret.")
    ] = None
    deadline_ms: Annotated[
        float, _doc("Longest wait for its answer; then a request goes by load alone.", gt=0)
    ] = 2.0
    max_questions: Annotated[
        int, _doc("Most questions that wait for its answer; more go by load alone.", ge=1)
    ] = 256

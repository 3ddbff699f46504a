"""A tenant: whoever the keys belong to."""

from typing import Annotated

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]


class Tenant(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a tenant may. 0: no bound. `keys`: hashes, as `hash_key` gives them.

    `models`: those that it may ask for; none: all.
    """

    id: Annotated[str, Meta(min_length=1, max_length=128, pattern=r"^[A-Za-z0-9._-]+$")]
    keys: tuple[Annotated[str, Meta(pattern=r"^sha256:[0-9a-f]{64}$")], ...] = ()
    requests_per_minute: Count = 0
    tokens_per_minute: Count = 0
    concurrent_requests: Count = 0
    models: tuple[str, ...] = ()
    disabled: bool = False

    @property
    def is_bounded(self) -> bool:
        return bool(self.requests_per_minute or self.tokens_per_minute or self.concurrent_requests)

    def may_ask(self, model: str) -> bool:
        return not self.models or model in self.models

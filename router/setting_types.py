"""What settings are made of: a section's base, a sentence for each, and kinds of values."""

from typing import Annotated, Any

import msgspec
from msgspec import Meta


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A section. Its fields' `Meta` descriptions are the documentation."""


def doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


Seconds = float
Port = Annotated[int, Meta(ge=0, le=65535)]
Positive = Annotated[int, Meta(ge=1)]
Ms = Annotated[float, Meta(ge=0)]
PositiveMs = Annotated[float, Meta(gt=0)]

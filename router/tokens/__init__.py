"""Text → the ids that the engine will see."""

from router.tokens.assembly import (
    Later,
    ModelSource,
    Tokenizers,
    assemble,
    engine_flags,
    model_sources,
)
from router.tokens.fallback import ByModel, FallbackTokenizer, NullTokenizer
from router.tokens.fetching import Fetcher, Serving
from router.tokens.files import FetchLimits, ModelFiles, NoModelFiles
from router.tokens.judge import JudgedTokenizer, JudgeLimits, Verdict
from router.tokens.limits import EngineFlags, Limits
from router.tokens.local import LocalTokenizer
from router.tokens.model_dir import UnusableModelDir
from router.tokens.protocol import FINAL, Reason, TokenizeFailed, Tokenizer
from router.tokens.remote import RemoteLimits, RemoteTokenizer
from router.tokens.show import NotShown, Shown, show, take_apart
from router.tokens.template import BadTemplate, ChatTemplate

__all__ = [
    "FINAL",
    "BadTemplate",
    "ByModel",
    "ChatTemplate",
    "EngineFlags",
    "FallbackTokenizer",
    "FetchLimits",
    "Fetcher",
    "JudgeLimits",
    "JudgedTokenizer",
    "Later",
    "Limits",
    "LocalTokenizer",
    "ModelFiles",
    "ModelSource",
    "NoModelFiles",
    "NotShown",
    "NullTokenizer",
    "Reason",
    "RemoteLimits",
    "RemoteTokenizer",
    "Serving",
    "Shown",
    "TokenizeFailed",
    "Tokenizer",
    "Tokenizers",
    "UnusableModelDir",
    "Verdict",
    "assemble",
    "engine_flags",
    "model_sources",
    "show",
    "take_apart",
]

"""Text → the ids that the engine will see."""

from router.tokens.assembly import ModelSource, Tokenizers, assemble, model_sources
from router.tokens.fallback import ByModel, FallbackTokenizer, NullTokenizer
from router.tokens.judge import JudgedTokenizer, JudgeLimits, Verdict
from router.tokens.local import EngineFlags, Limits, LocalTokenizer
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
    "JudgeLimits",
    "JudgedTokenizer",
    "Limits",
    "LocalTokenizer",
    "ModelSource",
    "NotShown",
    "NullTokenizer",
    "Reason",
    "RemoteLimits",
    "RemoteTokenizer",
    "Shown",
    "TokenizeFailed",
    "Tokenizer",
    "Tokenizers",
    "UnusableModelDir",
    "Verdict",
    "assemble",
    "model_sources",
    "show",
    "take_apart",
]

"""A small vocabulary in the file format of Mistral's models, in each of its versions."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

VERSIONS = ("v3", "v7", "v11", "v13", "v15")
ADDED = (
    "[AUDIO] [BEGIN_AUDIO] [CALL_ID] [ARGS] [THINK] [/THINK] [MODEL_SETTINGS] [/MODEL_SETTINGS]"
).split()
PATTERN = r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s+"
EFFORT = {"type": "enum", "values": ["none", "high"], "default": "none", "accepts_none": True}


def write_tekken(directory: Path, version: str) -> Path:
    words = [bytes([byte]) for byte in range(256)] + [b"th", b"he", b"in", b"the", b" the"]
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(word).decode(), "token_str": None}
        for rank, word in enumerate(words)
    ]
    special = list(Tekkenizer.DEPRECATED_SPECIAL_TOKENS)
    for text in ADDED:
        special.append({"rank": len(special), "token_str": text, "is_control": True})
    config = {
        "pattern": PATTERN,
        "num_vocab_tokens": len(words),
        "default_vocab_size": len(words) + len(special),
        "default_num_special_tokens": len(special),
        "version": version,
    }
    whole = {"vocab": vocab, "special_tokens": special, "config": config, "version": 1}
    if version == "v15":
        whole["model_settings_builder"] = {"reasoning_effort": EFFORT}
    (directory / "tekken.json").write_text(json.dumps(whole), "utf-8")
    return directory


def asked_of(library: Any, messages: Any, tools: Any = None, **flags: Any) -> list[int]:
    """What the engine asks of mistral-common: ids of calls are cut before."""
    cut = json.loads(json.dumps(messages).replace("call-123456789", "123456789"))
    request = ChatCompletionRequest.from_openai(messages=cut, tools=tools, **flags)
    ids: list[int] = library.encode_chat_completion(request).tokens
    return ids

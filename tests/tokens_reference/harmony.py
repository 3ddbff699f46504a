"""Ids of gpt-oss chats as vLLM itself makes them: `python -m … MODELS OUT`, in vLLM's environment.

vLLM's own request model and its own harmony renderer do all of it; the date is pinned. Completions
never see that format: the engine encodes them by the model's files, as any other model's, and
these know `<|endofprompt|>`, which the format's own vocabulary doesn't.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from tests.tokens_reference.corpus import Case, Maker

DATE = "2026-01-02"
FAMILY = "gpt-oss"


def main() -> None:
    models, out = Path(sys.argv[1]), Path(sys.argv[2])
    os.environ["VLLM_SYSTEM_START_DATE"] = DATE
    config = json.loads((models / FAMILY / "tokenizer.json").read_text("utf-8"))
    specials = [token["content"] for token in config["added_tokens"]]
    encode = tokenizer(models / FAMILY)
    with out.open("w", encoding="utf-8") as lines:
        for case in Maker(specials).cases():
            case["ids"] = completion(encode, case) if "text" in case else chat(case)
            lines.write(json.dumps(case, ensure_ascii=False) + "\n")


def tokenizer(directory: Path) -> Callable[..., list[int]]:
    """The one that vLLM encodes prompts of completions with."""
    encode: Callable[..., list[int]] = (
        importlib.import_module("vllm.tokenizers").get_tokenizer(str(directory)).encode
    )
    return encode


def chat(case: Case) -> list[int] | None:
    """None: the engine refuses the request."""
    protocol = importlib.import_module("vllm.entrypoints.openai.chat_completion.protocol")
    renderers = importlib.import_module("vllm.renderers.online_renderer")
    engine = SimpleNamespace(
        supports_browsing=False, supports_code_interpreter=False, renderer=None
    )
    try:
        request = protocol.ChatCompletionRequest.model_validate(
            json.loads(json.dumps(case["body"]))
        )
        _, [made] = renderers.OnlineRenderer._make_request_with_harmony(
            engine, request, request.tools is not None
        )
    except ValueError:
        return None
    ids: list[int] = made["prompt_token_ids"]
    return ids


def completion(encode: Callable[..., list[int]], case: Case) -> list[int]:
    ids = encode(case["text"], add_special_tokens=case["special"])
    return ids[-case["keep"] :] if "keep" in case else ids


if __name__ == "__main__":
    main()

"""Ids as `transformers` makes them, one JSON line per case: `python -m … MODELS FAMILY OUT`."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from tests.tokens_reference.corpus import Case, Maker


def main() -> None:
    models, family, out = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
    transformers = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(models / family))
    specials = [text for text in tokenizer.all_special_tokens if text.strip()]
    added = [str(token) for token in tokenizer.added_tokens_decoder.values() if token.special]
    with out.open("w", encoding="utf-8") as lines:
        for case in Maker([*specials, *added[:40]]).cases():
            case["ids"] = ids_of(tokenizer, case)
            lines.write(json.dumps(case, ensure_ascii=False) + "\n")


def ids_of(tokenizer: Any, case: Case) -> list[int] | None:
    """None: the template objects to the conversation, or cannot continue it."""
    if "text" in case:
        ids: list[int] = tokenizer.encode(case["text"], add_special_tokens=case["special"])
        return ids[-case["keep"] :] if "keep" in case else ids
    refusals: tuple[type[Exception], ...] = (
        ValueError,
        importlib.import_module("jinja2").exceptions.TemplateError,
    )
    try:
        text = tokenizer.apply_chat_template(
            case["in_parts"] if takes_parts(tokenizer, case) else case["conversation"],
            tools=case["tools"],
            add_generation_prompt=case["add_generation_prompt"],
            continue_final_message=case["continue_final_message"],
            tokenize=False,
            **case["variables"],
        )
    except refusals:
        return None
    found: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return found


def takes_parts(tokenizer: Any, case: Case) -> bool:
    """Templates that iterate over a message's content are given its parts as they were sent."""
    return "in_parts" in case and "for item in message['content']" in tokenizer.chat_template


if __name__ == "__main__":
    main()

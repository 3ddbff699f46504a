"""Our ids against the reference's: `python -m … MODELS REFERENCES`. 1 if any differs."""

from __future__ import annotations

import asyncio
import json
import sys
from array import array
from datetime import datetime
from pathlib import Path
from typing import Any

from router.openai.generation import Generation, parse_generation
from router.tokens import Limits, LocalTokenizer, TokenizeFailed
from tests.tokens_reference import harmony

PATIENT = Limits(deadline_s=60, inline_s=10)
SHOWN = 3


def main() -> int:
    models, references = Path(sys.argv[1]), Path(sys.argv[2])
    failed = 0
    for file in sorted(references.glob("*.jsonl")):
        cases = [json.loads(line) for line in file.open(encoding="utf-8")]
        clock = pinned if file.stem == harmony.FAMILY else datetime.now
        tokenizer = LocalTokenizer.load(models / file.stem, limits=PATIENT, clock=clock)
        wrong = asyncio.run(compare(tokenizer, cases))
        refused = sum(case["ids"] is None for case in cases)
        cut = "cut" if tokenizer.encoder.cuts else "whole"
        say(
            f"{file.stem:16}{len(cases):5} requests{len(cases) - len(wrong):5} equal"
            f"{refused:4} refused by both  ({cut})"
        )
        for case in wrong[:SHOWN]:
            say("   differs:", json.dumps(case["body"], ensure_ascii=False)[:300])
        failed += len(wrong)
    say(f"{failed} differences")
    return 1 if failed else 0


def pinned() -> datetime:
    return datetime.fromisoformat(harmony.DATE)


async def compare(tokenizer: LocalTokenizer, cases: list[Any]) -> list[Any]:
    """Cases whose ids differ, asked twice: the second time everything is in the memo."""
    return [
        case for case in cases if any([await ids(tokenizer, case) != case["ids"] for _ in range(2)])
    ]


async def ids(tokenizer: LocalTokenizer, case: Any) -> list[int] | None:
    try:
        return array("I", await tokenizer.tokenize(generation(case))).tolist()
    except TokenizeFailed:
        return None


def say(*words: str) -> None:
    sys.stdout.write(" ".join(words) + "\n")


def generation(case: Any) -> Generation:
    return parse_generation(case["path"], {}, json.dumps(case["body"]).encode())


if __name__ == "__main__":
    raise SystemExit(main())

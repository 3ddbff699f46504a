"""Ids of a real model against those that a real vLLM 0.32.0 computed.

Needs only the tokenizer files of SmolLM2-135M-Instruct; WARMGATE_TEST_MODELS names the folder
that holds `smollm2-135m/` (default: build/models).
"""

import os
from pathlib import Path

import pytest

from router.tokens import Limits, LocalTokenizer
from tests.support.tokens import generation, rows, unpack

MODELS = Path(os.environ.get("WARMGATE_TEST_MODELS", "build/models"))
MODEL_DIR = MODELS / "smollm2-135m"
RECORDED = rows("vllm-0.32-smollm2-ids.jsonl")

pytestmark = pytest.mark.skipif(
    not (MODEL_DIR / "tokenizer.json").is_file(),
    reason=f"smollm2-135m is not in {MODELS} (set WARMGATE_TEST_MODELS)",
)


@pytest.fixture(scope="module")
def tokenizer():
    return LocalTokenizer.load(MODEL_DIR)


@pytest.mark.parametrize("number", range(len(RECORDED)))
async def test_ids_are_the_engines(tokenizer, number):
    row = RECORDED[number]
    asked = generation(row["path"], **row["body"])
    assert unpack(await tokenizer.tokenize(asked)) == row["token_ids"]
    assert unpack(await tokenizer.tokenize(asked)) == row["token_ids"]  # now from the memo


async def test_ids_do_not_depend_on_what_the_memo_holds(tokenizer):
    forgetful = LocalTokenizer.load(MODEL_DIR, limits=Limits(memo_bytes=0))
    for row in RECORDED:
        asked = generation(row["path"], **row["body"])
        assert await forgetful.tokenize(asked) == await tokenizer.tokenize(asked)

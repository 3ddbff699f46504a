"""Ids that the router computes equal those of a real vLLM's /tokenize, for the whole corpus."""

import json
from random import Random

import aiohttp
import pytest

from router.openai.generation import parse_generation
from router.tokens import (
    Limits,
    LocalTokenizer,
    RemoteLimits,
    RemoteTokenizer,
    TokenizeFailed,
    Tokenizer,
)
from tests.tokens_reference.corpus import Case, Maker
from tests.vllm.conftest import Note
from tests.vllm.stack import MODEL_NAME, Installed, Replica

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>")


async def test_ids_equal_the_engines(at: Installed, pair: list[Replica], note: Note):
    local = LocalTokenizer.load(at.model, limits=Limits(deadline_s=30, inline_s=10))
    compared, different = 0, []
    async with aiohttp.ClientSession() as session:
        engine = RemoteTokenizer(
            session, lambda _: [pair[0].url], rng=Random(0), limits=RemoteLimits(deadline_s=30)
        )
        for case in Maker(SPECIALS).cases():
            ours, theirs = await ids(local, case), await ids(engine, case)
            compared += theirs is not None
            if theirs is not None and ours != theirs:
                different.append(case["body"])
    note("tokenize", {"compared": compared, "different": len(different)})
    assert different == []
    assert compared > 400


async def ids(tokenizer: Tokenizer, case: Case) -> bytes | None:
    body = json.dumps(case["body"] | {"model": MODEL_NAME}).encode()
    try:
        return await tokenizer.tokenize(parse_generation(case["path"], {}, body))
    except TokenizeFailed:
        return None

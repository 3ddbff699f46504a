"""Every model gets the tokenizer and the engine flags that the settings give it."""

import json
from random import Random

import pytest

from router.config import ConfigError, load_config, parse_config
from router.tokens import (
    JudgeLimits,
    Limits,
    NullTokenizer,
    Reason,
    TokenizeFailed,
    assemble,
    model_sources,
)
from tests.support.tokens import byte_level_tokenizer, generation, unpack, user, write_model_dir

LIMITS = Limits(deadline_s=30, memo_bytes=1 << 20)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return str(write_model_dir(tmp_path_factory.mktemp("model")))


def assembled(**tokens):
    told = parse_config({"tokens": tokens}).tokens
    sources = model_sources(told.models, told.default, told.engines)
    judge = JudgeLimits(share=0.0, probation=0)
    return assemble(sources, NullTokenizer(), limits=LIMITS, judge=judge, rng=Random(0))


async def ids(tokens, model):
    asked = generation("/v1/chat/completions", model=model, messages=[user("fox")])
    return unpack(await tokens.tokenizer.tokenize(asked))


def encoded(text):
    return byte_level_tokenizer().encode(text).ids


async def test_models_share_a_tokenizer_unless_their_engines_differ(directory, tmp_path):
    (tmp_path / "t.jinja").write_text("from a file", "utf-8")
    tokens = assembled(
        default=directory,
        models={"a": directory},
        engines={
            "b": {"chat_template": "{{ mood }}", "chat_template_kwargs": {"mood": "calm"}},
            "c": {"chat_template": str(tmp_path / "t.jinja")},
            "d": {"chat_template": "{{ messages[0].content }}", "content_format": "openai"},
        },
    )
    assert await ids(tokens, "b") == encoded("calm")
    assert await ids(tokens, "c") == encoded("from a file")
    assert await ids(tokens, "d") == encoded("[{'type': 'text', 'text': 'fox'}]")
    assert await ids(tokens, "a") == await ids(tokens, "others")
    assert {sample.tokenizer for sample in tokens.samples()} == {"a", "b", "c", "d"}


async def test_without_a_directory_the_engine_is_asked(directory):
    tokens = assembled(models={"a": directory})
    with pytest.raises(TokenizeFailed) as failed:
        await ids(tokens, "other")
    assert failed.value.reason is Reason.UNAVAILABLE


def test_a_template_that_cannot_be_read_is_an_error(directory):
    with pytest.raises(OSError, match="nowhere"):
        assembled(default=directory, engines={"a": {"chat_template": "/nowhere.jinja"}})


def test_an_unknown_content_format_is_refused():
    with pytest.raises(ConfigError, match="content_format"):
        assembled(engines={"a": {"content_format": "xml"}})


def test_the_environment_reaches_engines_too():
    value = json.dumps({"m": {"content_format": "string"}})
    config = load_config(None, (), {"WARMGATE__TOKENS__ENGINES": value})
    assert config.tokens.engines["m"].content_format == "string"

"""Tiny tokenizers, trained on the spot, and generations to feed them."""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from router.openai.generation import Generation, parse_generation
from router.tokens import beginnings, passages

CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{%- endfor %}"
    "{%- if tools %}{{- tools | tojson }}{%- endif %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}"
)

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

CORPUS = [
    "The quick brown fox jumps over the lazy dog, again and again, in the rain.",
    "Once upon a time a lighthouse keeper lived alone on a rock far out at sea.",
    "system user assistant You are a helpful assistant. 0123456789 (a + b) * c = d;",
    "Der schnelle Fuchs springt über den Hund; naïve café, Москва, 東京, 한국어.",
]

SCRIPTS = {
    "latin": "Grüße, naïve façade – ‘quoted’",
    "greek": "Καλημέρα κόσμε",
    "cyrillic": "Съешь же ещё этих булок",
    "hebrew": "שלום עולם",
    "arabic": "مرحبا بالعالم",
    "devanagari": "नमस्ते दुनिया",
    "tamil": "வணக்கம் உலகம்",
    "thai": "สวัสดีชาวโลก",
    "georgian": "გამარჯობა მსოფლიო",
    "ethiopic": "ሰላም ዓለም",
    "han": "今天天气很好",
    "kana": "こんにちは世界",
    "hangul": "안녕하세요 세계",
    "emoji": "👩‍👩‍👧‍👦 🏳️‍🌈 👍🏽 🙂",
    "combining": "e\u0301 a\u0308\u0323 \u200d\ufeff",
    "controls": "a\r\nb\tc\u0000\u001f",
}


def byte_level_tokenizer(added: list[AddedToken] | None = None) -> Tokenizer:
    """A byte-level BPE, as Llama 3, Qwen and SmolLM2 have it."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=[], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _add(tokenizer, added)
    return tokenizer


def metaspace_tokenizer(added: list[AddedToken] | None = None) -> Tokenizer:
    """A BPE that marks words with a space, only the text's first by itself, as Mistral has it."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=True)
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["<unk>"], show_progress=False, initial_alphabet=[]
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    _add(tokenizer, added)
    return tokenizer


def _add(tokenizer: Tokenizer, added: list[AddedToken] | None) -> None:
    if added is None:
        tokenizer.add_special_tokens(list(SPECIAL))
        return
    for token in added:
        (tokenizer.add_special_tokens if token.special else tokenizer.add_tokens)([token])


def write_model_dir(
    path: Path,
    tokenizer: Tokenizer | None = None,
    *,
    template: object = CHATML,
    **config: object,
) -> Path:
    """Write what a model directory has; `template` None: it has no chat template."""
    path.mkdir(parents=True, exist_ok=True)
    (tokenizer or byte_level_tokenizer()).save(str(path / "tokenizer.json"))
    settings: dict[str, object] = {"eos_token": "<|im_end|>", **config}
    if template is not None:
        settings["chat_template"] = template
    (path / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    return path


def user(content: object) -> dict[str, object]:
    return {"role": "user", "content": content}


def assistant(content: object, **more: object) -> dict[str, object]:
    return {"role": "assistant", "content": content, **more}


def system(content: object) -> dict[str, object]:
    return {"role": "system", "content": content}


def chat(messages: list[Any], **fields: object) -> Generation:
    return generation("/v1/chat/completions", messages=messages, **fields)


def completion(prompt: object, **fields: object) -> Generation:
    return generation("/v1/completions", prompt=prompt, **fields)


def generation(path: str, **body: object) -> Generation:
    return parse_generation(path, {}, json.dumps({"model": "m"} | body).encode())


def unpack(ids: bytes) -> list[int]:
    return array("I", ids).tolist()


def rows(name: str) -> list[dict[str, Any]]:
    """The lines of a recording in tests/data/tokens."""
    file = Path(__file__).parents[1] / "data" / "tokens" / name
    return [json.loads(line) for line in file.read_text("utf-8").splitlines()]


@contextmanager
def short_beginnings() -> Iterator[None]:
    """Chats of a few short messages are remembered as long ones are; for whole modules of tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beginnings, "FIRST_BYTES", 8)
        patch.setattr(beginnings, "STEP_BYTES", 64)
        patch.setattr(passages, "TURNS", 2)
        yield

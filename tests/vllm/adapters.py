"""Random LoRA adapters for the test model, in the layout that vLLM loads."""

import json
from pathlib import Path

import numpy as np

RANK = 8
_SCALE = 0.02
_TARGETS = ("q_proj", "v_proj")


def make_adapter(model: Path, folder: Path, seed: int) -> Path:
    """Write an adapter of rank 8 on every layer's queries and values; returns its folder."""
    config = json.loads((model / "config.json").read_text())
    hidden = config["hidden_size"]
    head = hidden // config["num_attention_heads"]
    widths = {"q_proj": hidden, "v_proj": head * config["num_key_value_heads"]}
    rng = np.random.default_rng(seed)
    tensors = {}
    for layer in range(config["num_hidden_layers"]):
        for name, width in widths.items():
            where = f"base_model.model.model.layers.{layer}.self_attn.{name}"
            tensors[f"{where}.lora_A.weight"] = rng.normal(0.0, _SCALE, (RANK, hidden))
            tensors[f"{where}.lora_B.weight"] = rng.normal(0.0, _SCALE, (width, RANK))
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(_safetensors(tensors))
    described = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": list(_TARGETS),
        "base_model_name_or_path": str(model),
    }
    (folder / "adapter_config.json").write_text(json.dumps(described))
    return folder


def _safetensors(tensors: dict[str, np.ndarray]) -> bytes:
    """Length of the header, the header in JSON, the numbers: float32, row by row."""
    header, parts, at = {}, [], 0
    for name, tensor in tensors.items():
        raw = tensor.astype("<f4").tobytes()
        shape = list(tensor.shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(raw)]}
        parts.append(raw)
        at += len(raw)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + b"".join(parts)

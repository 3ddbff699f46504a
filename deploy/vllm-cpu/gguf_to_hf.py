"""Write a Llama-architecture GGUF as the model directory that vLLM and transformers load.

usage: gguf_to_hf.py MODEL.gguf OUTDIR

vLLM itself no longer reads GGUF. Weights become bfloat16, which a CPU with AVX-512 multiplies
fastest; quantized ones are expanded, so the result is what the GGUF's authors made of the model,
not the original checkpoint. The tokenizer must be SmolLM's: GPT-2's byte level, digits apart.
"""

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader, ReaderTensor, dequantize
from safetensors.torch import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

Meta = dict[str, Any]

WHOLE_MODEL = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
PER_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
CONTROL_TOKEN = 3  # GGUF's tokenizer.ggml.token_type


def main() -> None:
    source, out = Path(sys.argv[1]), Path(sys.argv[2])
    reader = GGUFReader(source)
    meta = {key: field.contents() for key, field in reader.fields.items()}
    if (meta["general.architecture"], meta["tokenizer.ggml.pre"]) != ("llama", "smollm"):
        sys.exit(f"{source}: only Llama models with SmolLM's tokenizer can be converted")
    weights = dict(weight(tensor, meta) for tensor in reader.tensors)
    out.mkdir(parents=True, exist_ok=True)
    save_file(weights, out / "model.safetensors", metadata={"format": "pt"})
    tokenizer(meta).save(str(out / "tokenizer.json"))
    write(out / "tokenizer_config.json", tokenizer_config(meta))
    write(out / "generation_config.json", special_ids(meta))
    write(out / "config.json", model_config(meta, tied="lm_head.weight" not in weights))


def weight(tensor: ReaderTensor, meta: Meta) -> tuple[str, torch.Tensor]:
    """Its name and value in the transformers layout."""
    values = dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
    values = values.reshape([int(n) for n in reversed(tensor.shape)])
    stem = tensor.name.removesuffix(".weight")
    if stem in WHOLE_MODEL:
        name = WHOLE_MODEL[stem]
    else:
        _, layer, kind = stem.split(".")
        name = f"model.layers.{layer}.{PER_LAYER[kind]}"
        if kind in ("attn_q", "attn_k"):
            values = split_rotary_halves(values, heads(meta, kind))
    return f"{name}.weight", torch.from_numpy(np.ascontiguousarray(values)).to(torch.bfloat16)


def heads(meta: Meta, kind: str) -> int:
    key = "head_count" if kind == "attn_q" else "head_count_kv"
    return int(meta[f"llama.attention.{key}"])


def split_rotary_halves(rows: np.ndarray, n_heads: int) -> np.ndarray:
    """GGUF keeps the two rows of each rotation side by side; transformers, half a head apart."""
    by_pair = rows.reshape(n_heads, -1, 2, rows.shape[1])
    return by_pair.swapaxes(1, 2).reshape(rows.shape)


def tokenizer(meta: Meta) -> Tokenizer:
    tokens = meta["tokenizer.ggml.tokens"]
    merges = [tuple(pair.split(" ", 1)) for pair in meta["tokenizer.ggml.merges"]]
    result = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, merges))
    result.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    result.decoder = decoders.ByteLevel()
    kinds = meta["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == CONTROL_TOKEN]
    result.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in control])
    return result


def special_ids(meta: Meta) -> Meta:
    return {
        "bos_token_id": meta["tokenizer.ggml.bos_token_id"],
        "eos_token_id": meta["tokenizer.ggml.eos_token_id"],
        "pad_token_id": meta["tokenizer.ggml.padding_token_id"],
    }


def tokenizer_config(meta: Meta) -> Meta:
    tokens = meta["tokenizer.ggml.tokens"]
    named = {key.removesuffix("_id"): tokens[i] for key, i in special_ids(meta).items()}
    return named | {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": tokens[meta["tokenizer.ggml.unknown_token_id"]],
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "model_max_length": meta["llama.context_length"],
        "chat_template": meta["tokenizer.chat_template"],
    }


def model_config(meta: Meta, *, tied: bool) -> Meta:
    return special_ids(meta) | {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "mlp_bias": False,
        "hidden_act": "silu",
        "hidden_size": meta["llama.embedding_length"],
        "intermediate_size": meta["llama.feed_forward_length"],
        "max_position_embeddings": meta["llama.context_length"],
        "num_attention_heads": meta["llama.attention.head_count"],
        "num_hidden_layers": meta["llama.block_count"],
        "num_key_value_heads": meta["llama.attention.head_count_kv"],
        "rms_norm_eps": meta["llama.attention.layer_norm_rms_epsilon"],
        "rope_theta": meta["llama.rope.freq_base"],
        "tie_word_embeddings": tied,
        "vocab_size": len(meta["tokenizer.ggml.tokens"]),
        "dtype": "bfloat16",
        "use_cache": True,
    }


def write(path: Path, value: Meta) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n")


if __name__ == "__main__":
    main()

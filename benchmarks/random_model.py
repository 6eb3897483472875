"""Random models of real shapes, for speed work without a download: `python -m benchmarks.random_model FOLDER`.

Their config.json says `random_weights`, and a benchmark row of such a model cannot carry tokens per second: it never
converges, so its steps per canvas mean nothing. Milliseconds per step, prefill and memory do.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from benchmarks.random_weights import FORMATS, Weights
from benchmarks.tensor_file import write as write_tensors
from dgemma.config import ModelConfig

_SPECIALS = {0: "<pad>", 1: "<eos>", 2: "<bos>", 3: "<unk>", 50: "<|tool_response>", 105: "<|turn>", 106: "<turn|>"}
_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<|turn>{{ message['role'] }}\n{{ message['content'] }}<turn|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|turn>model\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a random model; every `period`-th layer is full.

    `loudness` is the standard deviation of its logits before the softcap. At 4 the mean entropies of random canvases
    (about 0.3 to 2 nats at temperatures between 0.4 and 0.8) resemble those of a canvas half-way through its denoising.
    """

    hidden: int = 256
    layers: int = 4
    experts: int = 16
    top_k: int = 4
    vocab: int = 65536
    canvas: int = 256
    window: int = 256
    loudness: float = 4.0
    dense: int = 512
    expert: int = 128
    heads: int = 4
    kv_heads: tuple[int, int] = (2, 1)
    head_dims: tuple[int, int] = (64, 128)
    period: int = 4
    positions: int = 4096


_RELEASE = Shape(
    hidden=2816,
    layers=30,
    experts=128,
    top_k=8,
    vocab=262144,
    window=1024,
    dense=2112,
    expert=704,
    heads=16,
    kv_heads=(8, 2),
    head_dims=(256, 512),
    period=6,
    positions=262144,
)
PRESETS = {
    "tiny": Shape(
        hidden=128, layers=2, experts=8, top_k=2, vocab=1024, canvas=32, window=64, dense=128, expert=64, period=2
    ),
    "medium": Shape(hidden=512, layers=8, experts=32, top_k=8, vocab=32768, dense=1024, expert=256),
    "vocab": Shape(),
    "layer": replace(_RELEASE, layers=2, vocab=4096, period=2, positions=32768),
    "full": _RELEASE,
}


def write(folder: Path, shape: Shape, form: str = "fp32", seed: int = 0) -> Path:
    """Write a checkpoint of random weights, with a tokenizer of single characters."""
    folder.mkdir(parents=True, exist_ok=True)
    raw, formats = _config(shape), FORMATS[form]
    config = ModelConfig.from_dict(raw)
    if quantization := formats.config(config):
        raw |= {"quantization": quantization}
    raw |= {"dtype": "float32" if form == "fp32" else "bfloat16"}
    _write_json(folder / "config.json", raw)
    _write_json(folder / "generation_config.json", _generation())
    _write_json(folder / "tokenizer_config.json", {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>"})
    (folder / "chat_template.jinja").write_text(_TEMPLATE, encoding="utf-8")
    _tokenizer().save(str(folder / "tokenizer.json"))
    write_tensors(folder / "model.safetensors", list(Weights(config, formats, shape.loudness, seed).entries()))
    return folder


def main() -> None:
    """Write one of the presets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--preset", choices=list(PRESETS), default="vocab")
    parser.add_argument("--format", choices=list(FORMATS), default="fp32")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    write(options.folder, PRESETS[options.preset], options.format, options.seed)


def _config(shape: Shape) -> dict[str, Any]:
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "random_weights": True,
        "canvas_length": shape.canvas,
        "boi_token_id": 125,
        "image_token_id": 126,
        "eoi_token_id": 127,
        "eos_token_id": [1, 106],
        "pad_token_id": 0,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "text_config": _text(shape),
        "vision_config": _vision(),
    }


def _text(shape: Shape) -> dict[str, Any]:
    full = {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}
    every = range(1, shape.layers + 1)
    return {
        "model_type": "diffusion_gemma_text",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": shape.layers,
        "layer_types": ["sliding_attention" if layer % shape.period else "full_attention" for layer in every],
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads[0],
        "num_global_key_value_heads": shape.kv_heads[1],
        "head_dim": shape.head_dims[0],
        "global_head_dim": shape.head_dims[1],
        "intermediate_size": shape.dense,
        "moe_intermediate_size": shape.expert,
        "num_experts": shape.experts,
        "top_k_experts": shape.top_k,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": shape.window,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": full,
        },
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": 1e-06,
        "final_logit_softcapping": 30.0,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
    }


def _vision() -> dict[str, Any]:
    """The smallest tower that other loaders accept; no tensor of it is stored."""
    sizes = dict.fromkeys(("hidden_size", "intermediate_size", "head_dim", "position_embedding_size"), 16)
    ones = dict.fromkeys(("num_hidden_layers", "num_attention_heads", "num_key_value_heads"), 1)
    rope = {"rope_parameters": {"rope_type": "default", "rope_theta": 100.0}}
    return {"model_type": "gemma4_vision", "patch_size": 4, "pooling_kernel_size": 3} | sizes | ones | rope


def _generation() -> dict[str, Any]:
    return {
        "max_new_tokens": 256,
        "max_denoising_steps": 48,
        "t_min": 0.4,
        "t_max": 0.8,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "eos_token_id": [1, 106, 50],
        "pad_token_id": 0,
        "bos_token_id": 2,
    }


def _tokenizer() -> Tokenizer:
    free = (index for index in range(4, 1000) if index not in _SPECIALS)
    vocabulary = {token: index for index, token in _SPECIALS.items()}
    vocabulary |= {character: next(free) for character in ("\n", *map(chr, range(32, 127)))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in _SPECIALS.values()])
    return tokenizer


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

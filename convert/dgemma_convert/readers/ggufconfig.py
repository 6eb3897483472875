"""config.json and generation_config.json out of GGUF metadata.

Only what the metadata leave out is filled in from the release, and said so.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from dgemma.errors import CheckpointError
from dgemma_convert.readers.ggufheader import Header

_PREFIX = "diffusion-gemma."
_NO_VISION = "GGUF files hold no vision tensors: the result reads text only (transformers makes up a vision tower)."
_STOPS = ("<eos>", "<turn|>", "<|tool_response>")
_SAMPLER = {
    "max_denoising_steps": ("eb_max_steps", 48),
    "t_min": ("eb_t_min", 0.4),
    "t_max": ("eb_t_max", 0.8),
    "stability_threshold": ("eb_stability_threshold", 1),
    "confidence_threshold": ("eb_confidence_threshold", 0.005),
}
_BOUND = ("eb_entropy_bound", 0.1)
_IMAGES = {"boi_token_id": "<|image>", "image_token_id": "<|image|>", "eoi_token_id": "<image|>"}


def config(header: Header) -> tuple[dict[str, Any], list[str]]:
    """config.json, and notes on what it could not take from the file."""
    tokens = header.texts("tokenizer.ggml.tokens")
    found: dict[str, Any] = {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "canvas_length": header.whole("diffusion.canvas_length"),
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "eos_token_id": _stops(tokens)[:2],
        "text_config": _text(header, len(tokens)),
        "vision_config": None,
    }
    found |= {key: tokens.index(token) for key, token in _IMAGES.items() if token in tokens}
    notes = [_NO_VISION]
    if "rope_freqs.weight" not in header.tensors:
        notes.append("The file has no rope_freqs; a quarter of each head is rotated, as in the release.")
    if f"diffusion.{_BOUND[0]}" not in header.fields:
        notes.append("The file has no sampler settings; generation_config.json has those of the release.")
    return found, notes


def generation_config(header: Header) -> dict[str, Path | bytes]:
    """The sampler settings as a file."""
    found: dict[str, Any] = {name: _setting(header, key, default) for name, (key, default) in _SAMPLER.items()}
    found["sampler_config"] = {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": _setting(header, *_BOUND)}
    found["max_new_tokens"] = header.whole("diffusion.canvas_length")
    found["eos_token_id"] = _stops(header.texts("tokenizer.ggml.tokens"))
    found["pad_token_id"] = header.whole("tokenizer.ggml.padding_token_id", 0)
    return {"generation_config.json": (json.dumps(found, indent=2) + "\n").encode()}


def _setting(header: Header, key: str, default: float) -> float:
    """A float32 of the file as the shortest decimal that means it."""
    if isinstance(default, int):
        return header.whole(f"diffusion.{key}", default)
    return float(str(np.float32(header.number(f"diffusion.{key}", default))))


def _stops(tokens: list[str]) -> list[int]:
    return [tokens.index(token) for token in _STOPS if token in tokens]


def _text(header: Header, vocabulary: int) -> dict[str, Any]:
    def whole(key: str) -> int:
        return header.whole(_PREFIX + key)

    def number(key: str) -> float:
        return float(str(np.float32(header.number(_PREFIX + key))))

    layers = whole("block_count")
    sliding, heads = _layers(header, layers)
    full_heads = [count for count, slides in zip(heads, sliding, strict=True) if not slides]
    return {
        "model_type": "diffusion_gemma_text",
        "vocab_size": vocabulary,
        "hidden_size": whole("embedding_length"),
        "intermediate_size": whole("feed_forward_length"),
        "moe_intermediate_size": whole("expert_feed_forward_length"),
        "num_experts": whole("expert_count"),
        "top_k_experts": whole("expert_used_count"),
        "num_hidden_layers": layers,
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        "num_attention_heads": whole("attention.head_count"),
        "num_key_value_heads": next((n for n, slides in zip(heads, sliding, strict=True) if slides), heads[0]),
        "num_global_key_value_heads": full_heads[0] if full_heads else None,
        "head_dim": whole("attention.key_length_swa"),
        "global_head_dim": whole("attention.key_length"),
        "sliding_window": whole("attention.sliding_window"),
        "max_position_embeddings": whole("context_length"),
        "rms_norm_eps": number("attention.layer_norm_rms_epsilon"),
        "final_logit_softcapping": number("final_logit_softcapping"),
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
        "pad_token_id": header.whole("tokenizer.ggml.padding_token_id", 0),
        "bos_token_id": header.whole("tokenizer.ggml.bos_token_id"),
        "eos_token_id": header.whole("tokenizer.ggml.eos_token_id"),
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": number("rope.freq_base_swa")},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": number("rope.freq_base"),
                "partial_rotary_factor": _rotated(header),
            },
        },
    }


def _layers(header: Header, layers: int) -> tuple[list[bool], list[int]]:
    """Whether each layer slides, and its key/value heads."""
    if not 0 < layers <= len(header.tensors):
        raise CheckpointError(f"{header.path.name} claims {layers} layers with {len(header.tensors)} tensors.")
    sliding = header.wholes(_PREFIX + "attention.sliding_window_pattern", layers)
    return [bool(slides) for slides in sliding], header.wholes(
        _PREFIX + "attention.head_count_kv", layers, one_for_all=True
    )


def _rotated(header: Header) -> float:
    """The rotated share of a head: frequencies that are not divided away."""
    tensor = header.tensors.get("rope_freqs.weight")
    if tensor is None or tensor.kind != "F32":
        return 0.25
    factors = np.fromfile(header.path, np.float32, tensor.nbytes // 4, offset=tensor.start)
    return float((factors < 1e20).mean())

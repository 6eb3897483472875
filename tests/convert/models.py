"""A tiny model with every kind of tensor, written without any model library, in every published format."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from dgemma.config import ModelConfig
from dgemma.names import expected_tensors

Tensors = dict[str, torch.Tensor]
HIDDEN, DENSE, INNER, EXPERTS = 64, 96, 32, 4
LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "router.proj", "embed_tokens")
_LAYERS = ("sliding_attention", "full_attention")


def config(**changes: Any) -> dict[str, Any]:
    """config.json of the tiny model; `changes` go into its text part."""
    rope = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": 128,
        "hidden_size": HIDDEN,
        "intermediate_size": DENSE,
        "moe_intermediate_size": INNER,
        "num_experts": EXPERTS,
        "top_k_experts": 2,
        "num_hidden_layers": 2,
        "layer_types": list(_LAYERS),
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": 24,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6,
        "final_logit_softcapping": 30.0,
        "hidden_activation": "gelu_pytorch_tanh",
        "use_bidirectional_attention": "vision",
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": rope},
    }
    found = {"model_type": "diffusion_gemma", "architectures": ["DiffusionGemmaForBlockDiffusion"]}
    return found | {"canvas_length": 16, "dtype": "float32", "text_config": text | changes, "vision_config": None}


GENERATION = {
    "max_denoising_steps": 8,
    "t_min": 0.4,
    "t_max": 0.8,
    "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
    "stability_threshold": 1,
    "confidence_threshold": 0.005,
    "eos_token_id": [1, 106, 50],
    "pad_token_id": 0,
}


def weights(raw: Mapping[str, Any] | None = None, dtype: torch.dtype = torch.float32) -> Tensors:
    """Every tensor of the hub layout, with the values that keep a random model tame."""
    shapes = expected_tensors(ModelConfig.from_dict(raw or config()))
    return {name: torch.from_numpy(_value(name, shape)).to(dtype) for name, shape in shapes.items()}


def hub(folder: Path, tensors: Tensors | None = None, raw: Mapping[str, Any] | None = None) -> Path:
    """Write the hub layout."""
    return write(folder, tensors or weights(raw), raw or config())


def write(folder: Path, tensors: Mapping[str, torch.Tensor], raw: Mapping[str, Any]) -> Path:
    """Write `tensors` and `raw` as a model folder."""
    folder.mkdir(parents=True)
    stored = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}")
    return folder


def read(folder: Path) -> Tensors:
    """All tensors of a folder."""
    return {name: value for path in folder.glob("*.safetensors") for name, value in load_file(path).items()}


def unfused(tensors: Tensors, encode: Callable[[str, torch.Tensor], Tensors], dense: bool = False) -> Tensors:
    """The experts one by one, each matrix through `encode(path, matrix)`; with `dense` other linears too."""
    found: Tensors = {}
    for name, value in tensors.items():
        base, _, kind = name.rpartition(".experts.")
        if base:
            for expert, matrix in enumerate(value):
                halves = matrix.chunk(2) if kind == "gate_up_proj" else (matrix,)
                for each, part in zip(
                    ("gate_proj", "up_proj") if len(halves) == 2 else ("down_proj",), halves, strict=True
                ):
                    found |= encode(f"{base}.experts.{expert}.{each}", part)
        elif dense and name.endswith("_proj.weight"):
            found |= encode(name.removesuffix(".weight"), value)
        else:
            found[name] = value
    return found


def _value(name: str, shape: tuple[int, ...]) -> np.ndarray:
    normal = np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape).astype(np.float32)
    if name.endswith("layer_scalar"):
        return 0.65 + 0.1 * normal
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.4 * (1 + 0.2 * normal)
    if name.endswith("router.scale"):
        return 8 * (1 + 0.2 * normal)
    if len(shape) < 2:
        return 1 + 0.2 * normal
    return normal * (0.1 if "embed_tokens" in name else shape[-1] ** -0.5)

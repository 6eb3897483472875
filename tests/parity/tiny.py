"""A tiny DiffusionGemma with random weights, written by transformers in several spellings.

Every parameter and buffer is non-trivial, so that a dropped norm, scale or scalar shows in the logits. Two choices keep
the numbers tame: query and key norms near 0.4 (the attention scale is 1) and router scales near 24 (undoing H^-0.5), so
that attention is soft and the top experts have real margins.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import DiffusionGemmaGenerationConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

Tensors = dict[str, Tensor]

WINDOW = 24
CANVAS = 16
VOCAB = 512
_LAYERS = ("sliding_attention", "sliding_attention", "full_attention") * 2
_VISION_PREFIXES = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")


@dataclass(frozen=True)
class Variant:
    """How to write the tiny model.

    `resaved` keeps the config as save_pretrained writes it; otherwise it is respelled as on the hub. `loudness` scales
    the final norm and with it the logits, so that the softcap bites. `quietness` below 1 shrinks what the layers add to
    the residual, so that the canvas nearly copies itself: canvases sharpen over the steps and the stop rule fires.
    """

    vocab: int = VOCAB
    dtype: torch.dtype = torch.float32
    resaved: bool = False
    sharded: bool = False
    text_only: bool = False
    loudness: float = 1.0
    quietness: float = 1.0
    seed: int = 0


def write(folder: Path, variant: Variant = Variant()) -> Path:
    """Write the tiny model into `folder` and return it."""
    model = build(variant)
    model.to(variant.dtype).save_pretrained(folder, max_shard_size="200KB" if variant.sharded else "5GB")
    if not variant.resaved:
        _respell(folder)
    if variant.text_only:
        _drop_vision(folder)
    return folder


def build(variant: Variant = Variant()) -> DiffusionGemmaForBlockDiffusion:
    """The float32 model in memory."""
    model = DiffusionGemmaForBlockDiffusion(_config(variant)).eval()
    model.generation_config = _generation_config()
    draw = torch.Generator().manual_seed(variant.seed)
    with torch.no_grad():
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            fresh = _value(name, value, draw)
            if fresh is not None:
                value.copy_(fresh)
        _scale(model, variant)
    return model


def read(folder: Path) -> Tensors:
    """The tensors of a single-file model."""
    return load_file(folder / "model.safetensors")


def edit(source: Path, folder: Path, change: Callable[[Tensors], object]) -> Path:
    """Copy the single-file model `source` to `folder` with `change` applied to its tensors."""
    shutil.copytree(source, folder)
    tensors = read(folder)
    change(tensors)
    stored = {name: tensor.contiguous().clone() for name, tensor in tensors.items()}
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def _config(variant: Variant) -> DiffusionGemmaConfig:
    text = {
        "vocab_size": variant.vocab,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_experts": 8,
        "top_k_experts": 2,
        "num_hidden_layers": len(_LAYERS),
        "layer_types": list(_LAYERS),
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 32,
        "global_head_dim": 64,
        "sliding_window": WINDOW,
        "max_position_embeddings": 4096,
        "use_bidirectional_attention": "vision",
    }
    vision = {
        "model_type": "gemma4_vision",
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "head_dim": 12,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 64,
        "standardize": True,
    }
    return DiffusionGemmaConfig(
        text_config=text,
        vision_config=vision,
        canvas_length=CANVAS,
        image_token_id=500,
        boi_token_id=501,
        eoi_token_id=502,
        dtype=variant.dtype,
    )


def _generation_config() -> DiffusionGemmaGenerationConfig:
    return DiffusionGemmaGenerationConfig(
        max_new_tokens=32,
        max_denoising_steps=8,
        t_min=0.4,
        t_max=0.8,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
        stability_threshold=1,
        confidence_threshold=0.005,
        eos_token_id=[1, 106, 50],
        pad_token_id=0,
    )


def _value(name: str, like: Tensor, draw: torch.Generator) -> Tensor | None:
    """A fresh value for the tensor called `name`; None for buffers that are computed, not loaded."""

    def normal() -> Tensor:
        return torch.randn(like.shape, generator=draw)

    last = name.rsplit(".", 1)[-1]
    if last == "layer_scalar":
        return 0.3 + 0.7 * torch.rand(like.shape, generator=draw)
    if last == "std_bias":
        return 0.1 * normal()
    if last == "std_scale":
        return 1 + 0.1 * normal()
    if "inv_freq" in last or last == "embed_scale":
        return None
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return 0.4 * (1 + 0.2 * normal())
    if name.endswith("router.scale"):
        return 24 * (1 + 0.2 * normal())
    if "norm" in name or last.endswith("scale"):
        return 1 + 0.2 * normal()
    if name.endswith("embed_tokens.weight") or last == "position_embedding_table":
        return 0.1 * normal()
    return normal() * like.shape[-1] ** -0.5


def _scale(model: DiffusionGemmaForBlockDiffusion, variant: Variant) -> None:
    model.model.decoder.norm.weight.mul_(variant.loudness)
    for layer in model.model.decoder.layers:
        layer.post_attention_layernorm.weight.mul_(variant.quietness)
        layer.post_feedforward_layernorm.weight.mul_(variant.quietness)


def _respell(folder: Path) -> None:
    """Write the full layers' sizes and the vision rope type as the hub's config.json does."""
    config = json.loads((folder / "config.json").read_text())
    del config["text_config"]["per_layer_config"]
    config["text_config"].update(global_head_dim=64, num_global_key_value_heads=1)
    config["vision_config"]["rope_parameters"]["rope_type"] = "default"
    (folder / "config.json").write_text(json.dumps(config, indent=2))


def _drop_vision(folder: Path) -> None:
    tensors = read(folder)
    kept = {name: tensor for name, tensor in tensors.items() if not name.startswith(_VISION_PREFIXES)}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    config["vision_config"] = None
    (folder / "config.json").write_text(json.dumps(config, indent=2))

"""Random checkpoints for the step benchmark, written by transformers so that every engine reads the same folder."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import DiffusionGemmaConfig, DiffusionGemmaForBlockDiffusion
from transformers.models.diffusion_gemma import DiffusionGemmaGenerationConfig
from transformers.models.diffusion_gemma.generation_diffusion_gemma import EntropyBoundSamplerConfig

_VISION = {
    "model_type": "gemma4_vision",
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "head_dim": 12,
    "patch_size": 4,
    "pooling_kernel_size": 3,
    "position_embedding_size": 64,
}


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a random model; `loudness` is the standard deviation of its logits before the softcap.

    At 4 the entropies of random canvases (0.5 to 2 nats at temperatures between 0.4 and 0.8) resemble those of a canvas
    half-way through its denoising.
    """

    hidden: int = 256
    layers: int = 4
    experts: int = 16
    top_k: int = 4
    vocab: int = 65536
    canvas: int = 256
    window: int = 256
    loudness: float = 4.0


def write(folder: Path, shape: Shape) -> Path:
    """Write a float32 checkpoint with config.json spelled as on the hub."""
    torch.manual_seed(0)
    model = DiffusionGemmaForBlockDiffusion(_config(shape)).eval()
    model.generation_config = DiffusionGemmaGenerationConfig(
        max_new_tokens=shape.canvas,
        max_denoising_steps=48,
        t_min=0.4,
        t_max=0.8,
        sampler_config=EntropyBoundSamplerConfig(entropy_bound=0.1),
        eos_token_id=[1],
    )
    with torch.no_grad():
        for name, value in model.named_parameters():
            value.copy_(_value(name, value, shape))
    model.save_pretrained(folder)
    _respell(folder, shape)
    return folder


def _config(shape: Shape) -> DiffusionGemmaConfig:
    kinds = [("full_attention" if index % 4 == 3 else "sliding_attention") for index in range(shape.layers)]
    text = {
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "intermediate_size": 2 * shape.hidden,
        "moe_intermediate_size": shape.hidden // 2,
        "num_experts": shape.experts,
        "top_k_experts": shape.top_k,
        "num_hidden_layers": shape.layers,
        "layer_types": kinds,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 64,
        "global_head_dim": 128,
        "sliding_window": shape.window,
        "max_position_embeddings": 4096,
        "use_bidirectional_attention": "vision",
    }
    tokens = {"image_token_id": 500, "boi_token_id": 501, "eoi_token_id": 502}
    return DiffusionGemmaConfig(
        text_config=text, vision_config=_VISION, canvas_length=shape.canvas, dtype=torch.float32, **tokens
    )


def _value(name: str, like: Tensor, shape: Shape) -> Tensor:
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return torch.full_like(like, 0.4)
    if name.endswith("router.scale"):
        return torch.full_like(like, shape.hidden**0.5)
    if "norm" in name or "scale" in name:
        return torch.ones_like(like)
    if name.endswith("embed_tokens.weight"):
        return torch.randn_like(like) * (shape.loudness * shape.hidden**-0.5)
    return torch.randn_like(like) * like.shape[-1] ** -0.5


def _respell(folder: Path, shape: Shape) -> None:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    config["text_config"].pop("per_layer_config", None)
    config["text_config"].update(global_head_dim=128, num_global_key_value_heads=1)
    config["vision_config"]["rope_parameters"]["rope_type"] = "default"
    path.write_text(json.dumps(config, indent=2))

"""How many parameters of which part a model has, and how many bytes they take in a checkpoint or in a named format."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dgemma.checkpoint import Checkpoint
from dgemma.config import LayerShape, ModelConfig, Rope
from dgemma.errors import UsageError
from dgemma.names import EMBEDDING, expected_tensors, module

PARTS = ("experts", "attention", "dense", "self_conditioning", "router", "embedding", "other")
Sizes = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Format:
    """Bytes per parameter of each part; `compute_bits` is the width at which body and experts are multiplied."""

    name: str
    experts: float
    body: float
    embedding: float
    small: float
    expert_bits: float = 16
    body_bits: float = 16

    def bytes(self, part: str) -> float:
        """Bytes per parameter of `part`: self-conditioning and router are small, everything else is body."""
        if part in ("experts", "embedding"):
            return self.experts if part == "experts" else self.embedding
        if part == "other":
            return 2.0
        return self.small if part in ("self_conditioning", "router") else self.body


FORMATS = {
    each.name: each
    for each in (
        Format("bf16", 2, 2, 2, 2),
        Format("fp8", 1 + 2 / 2816, 1, 2, 2, 8, 8),
        Format("nvfp4", 0.5 + 1 / 16, 2, 2, 2, 4, 16),
        Format("int4-g32", 0.5 + 2 / 32, 0.5 + 4 / 32, 2, 2),
        Format("mlx-8bit", 1 + 4 / 64, 1 + 4 / 64, 1 + 4 / 64, 1 + 4 / 64),
        Format("mlx-4bit", 0.5 + 4 / 64, 1 + 4 / 64, 1 + 4 / 64, 1 + 4 / 64),
    )
}


def find_format(name: str) -> Format:
    """The format called `name`. Raises UsageError."""
    if name not in FORMATS:
        raise UsageError(f"No weight format called {name!r}.", f"Choose of: {', '.join(FORMATS)}.")
    return FORMATS[name]


def part(name: str) -> str:
    """The part of the model that a canonical tensor belongs to."""
    if name == EMBEDDING or name.startswith(module(EMBEDDING) + "."):
        return "embedding"
    if "self_conditioning." in name:
        return "self_conditioning"
    markers = {".experts.": "experts", ".router.proj": "router", ".mlp.": "dense", "_proj": "attention"}
    return next((found for marker, found in markers.items() if marker in name), "other")


def parameters(config: ModelConfig) -> Sizes:
    """Parameters by part."""
    return _sum({name: math.prod(shape) for name, shape in expected_tensors(config).items()}, lambda name: name)


def stored(checkpoint: Checkpoint, config: ModelConfig) -> Sizes:
    """Bytes by part as they lie in the checkpoint, vision and duplicates left out."""
    plan = checkpoint.plan(config)
    sizes = {name: sum(checkpoint.info(each).nbytes for each in source.parts) for name, source in plan.sources.items()}
    return _sum(sizes, lambda name: name)


def in_format(config: ModelConfig, found: Format) -> Sizes:
    """Bytes by part if the model were stored in a named format."""
    return {name: count * found.bytes(name) for name, count in parameters(config).items()}


def release() -> ModelConfig:
    """The shape of google/diffusiongemma-26B-A4B-it, known without a download."""
    sliding = LayerShape("sliding_attention", 8, 256, Rope("default", 1e4))
    full = LayerShape("full_attention", 2, 512, Rope("proportional", 1e6, 0.25))
    return ModelConfig(
        vocab_size=262144,
        hidden_size=2816,
        intermediate_size=2112,
        moe_intermediate_size=704,
        num_experts=128,
        top_k_experts=8,
        num_attention_heads=16,
        sliding_window=1024,
        max_position_embeddings=262144,
        rms_norm_eps=1e-6,
        final_logit_softcapping=30.0,
        canvas_length=256,
        dtype="bfloat16",
        layers=(*(sliding,) * 5, full) * 5,
    )


def _sum(sizes: Mapping[str, float], key: Callable[[str], str]) -> dict[str, float]:
    found = dict.fromkeys(PARTS, 0.0)
    for name, size in sizes.items():
        found[part(key(name))] += size
    return found

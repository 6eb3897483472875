"""What a converted model needs to run, on each backend."""

from __future__ import annotations

from dgemma import names
from dgemma.config import ModelConfig
from dgemma_convert.plan import Plan

CONTEXT = 8192
_HALF, _SINGLE = 2, 4
_SLAB = 2 * _SINGLE * (1 << 25)


def needs(plan: Plan) -> dict[str, int]:
    """Bytes with a context of `CONTEXT` tokens in 16 bits: weights, cache, logits; PyTorch unpacks into two slabs."""
    config = plan.source.model
    weights = sum(item.nbytes for item in plan.items if not item.weight.name.startswith(names.VISION))
    packed = any(item.form is not None for item in plan.items)
    shared = weights + cache_bytes(config, CONTEXT) + vocabulary_bytes(config)
    return {"mlx": shared, "cuda": shared + (_SLAB if packed else 0)}


def cache_bytes(config: ModelConfig, tokens: int) -> int:
    """Keys and values of all layers; sliding ones keep their window and a canvas."""
    window = config.sliding_window - 1 + config.canvas_length
    kept = [tokens if layer.kind == "full_attention" else min(tokens, window) for layer in config.layers]
    widths = [2 * layer.kv_heads * layer.head_dim * _HALF for layer in config.layers]
    return sum(count * width for count, width in zip(kept, widths, strict=True))


def vocabulary_bytes(config: ModelConfig) -> int:
    """Logits and self-conditioning weights of a canvas."""
    return 2 * config.canvas_length * config.vocab_size * _HALF

"""Models with random weights made on the device, in any storage format: speed needs no checkpoint."""

from __future__ import annotations

import torch

from benchmarks.ops import shapes, sizes
from benchmarks.ops.measure import device, dtype
from dgemma.config import LayerShape, ModelConfig, Rope
from dgemma.quantization import QuantSpec
from dgemma_cuda.attention import Attention
from dgemma_cuda.kernels import Kernels
from dgemma_cuda.model import MLP, Layer, Model, SelfConditioning
from dgemma_cuda.moe import MoE, Router

_LOUDNESS = 4.0
_SLIDING = LayerShape("sliding_attention", 8, 256, Rope("default", 1e4))
_FULL = LayerShape("full_attention", 2, 512, Rope("proportional", 1e6, 0.25))


def config(small: bool) -> ModelConfig:
    """The released model's sizes, or a small form with the same layers in kind."""
    size = shapes.SMALL if small else shapes.REAL
    kinds = (_SLIDING, _FULL) if small else (*(_SLIDING,) * 5, _FULL) * 5
    return ModelConfig(
        vocab_size=size.vocab,
        hidden_size=size.hidden,
        intermediate_size=size.dense,
        moe_intermediate_size=size.inner,
        num_experts=size.experts,
        top_k_experts=size.top_k,
        num_attention_heads=16,
        sliding_window=1024,
        max_position_embeddings=32768,
        rms_norm_eps=1e-6,
        final_logit_softcapping=30.0,
        canvas_length=size.rows,
        dtype="bfloat16",
        layers=kinds,
    )


def model(sizes_of: ModelConfig, spec: QuantSpec | None, kernels: Kernels) -> Model:
    """Every matrix in the format `spec`; the final norm is loud enough for entropies of a canvas half-way through."""
    hidden = sizes_of.hidden_size
    return Model(
        config=sizes_of,
        embed_tokens=sizes.embedding(spec, sizes_of.vocab_size, hidden),
        embed_scale=hidden**0.5,
        self_conditioning=SelfConditioning(_ones(hidden), _mlp(sizes_of, spec)),
        layers=tuple(_layer(sizes_of, spec, shape) for shape in sizes_of.layers),
        norm=_ones(hidden) * _LOUDNESS,
        dtype=dtype(),
        device=device(),
        kernels=kernels,
    )


def _ones(count: int) -> torch.Tensor:
    return torch.ones(count, device=device())


def _mlp(sizes_of: ModelConfig, spec: QuantSpec | None) -> MLP:
    hidden, inner = sizes_of.hidden_size, sizes_of.intermediate_size
    return MLP(sizes.linear(spec, 2 * inner, hidden), sizes.linear(spec, hidden, inner))


def _layer(sizes_of: ModelConfig, spec: QuantSpec | None, shape: LayerShape) -> Layer:
    hidden, norms = sizes_of.hidden_size, [_ones(sizes_of.hidden_size) for _ in range(7)]
    inner, experts = sizes_of.moe_intermediate_size, sizes_of.num_experts
    router = Router(
        proj=sizes.linear(None, experts, hidden),
        scale=_ones(hidden) * hidden**0.5,
        per_expert_scale=_ones(experts),
        top_k=sizes_of.top_k_experts,
        eps=sizes_of.rms_norm_eps,
    )
    gate_up = sizes.experts(spec, experts, 2 * inner, hidden)
    mixture = MoE(router, gate_up, sizes.experts(spec, experts, hidden, inner))
    scalars = torch.ones(2, device=device(), dtype=dtype())
    return Layer(_attention(sizes_of, spec, shape), _mlp(sizes_of, spec), mixture, *norms, scalars)


def _attention(sizes_of: ModelConfig, spec: QuantSpec | None, shape: LayerShape) -> Attention:
    hidden, queries = sizes_of.hidden_size, sizes_of.num_attention_heads * shape.head_dim
    keys = shape.kv_heads * shape.head_dim
    return Attention(
        shape=shape,
        heads=sizes_of.num_attention_heads,
        eps=sizes_of.rms_norm_eps,
        q_proj=sizes.linear(spec, queries, hidden),
        k_proj=sizes.linear(spec, keys, hidden),
        v_proj=None if shape.k_eq_v else sizes.linear(spec, keys, hidden),
        o_proj=sizes.linear(spec, hidden, queries),
        q_norm=_ones(shape.head_dim) * 0.4,
        k_norm=_ones(shape.head_dim) * 0.4,
    )

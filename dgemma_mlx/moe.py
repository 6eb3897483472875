"""The mixture of experts: a softmax router on the raw residual, and experts over rows sorted by expert."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import mlx.core as mx

from dgemma_mlx.norm import rms_norm
from dgemma_mlx.quant import Experts, Linear

if TYPE_CHECKING:
    from dgemma_mlx.kernels import Kernels


@dataclass(frozen=True, slots=True)
class Router:
    """`scale` [H] and `per_expert_scale` [E] are float32."""

    proj: Linear
    scale: mx.array
    per_expert_scale: mx.array
    top_k: int
    eps: float


@dataclass(frozen=True, slots=True)
class MoE:
    """Router and experts of one layer; `gate_up_proj` holds gate rows, then up rows."""

    router: Router
    gate_up_proj: Experts
    down_proj: Experts


def geglu(gate_up: mx.array) -> mx.array:
    """gelu_tanh(first half) * second half over the last axis."""
    gate, up = mx.split(gate_up, 2, axis=-1)
    return _gelu(gate.astype(mx.float32)).astype(gate.dtype) * up


def route(router: Router, x: mx.array) -> tuple[mx.array, mx.array]:
    """Residual x [N, H] -> expert ids [N, k] and their float32 weights, renormalised before per_expert_scale."""
    normed = rms_norm(x, router.scale * x.shape[-1] ** -0.5, router.eps)
    scores = router.proj(normed).astype(mx.float32)
    ids = mx.argpartition(-scores, router.top_k - 1, axis=-1)[:, : router.top_k]
    top = mx.take_along_axis(scores, ids, axis=-1)
    return ids, mx.softmax(top, axis=-1) * router.per_expert_scale[ids]


def moe(layer: MoE, residual: mx.array, x: mx.array, kernels: Kernels) -> mx.array:
    """Route by `residual`, apply to the normed `x`, both [N, H]; the weighted sum is taken in float32."""
    ids, weights = kernels.route(layer.router, residual)
    return kernels.experts(x, ids, weights, layer.gate_up_proj, layer.down_proj)


def experts(x: mx.array, ids: mx.array, routing: mx.array, gate_up: Experts, down: Experts) -> mx.array:
    """The mixture by MLX operations; see `kernels.naive`."""
    order = mx.argsort(ids.flatten())
    owners = ids.flatten()[order]
    hidden = geglu(gate_up(x[order // ids.shape[1]], owners))
    out = down(hidden, owners)[_inverse(order)].reshape(*ids.shape, -1)
    return (routing[:, None] @ out.astype(mx.float32))[:, 0].astype(x.dtype)


def _inverse(order: mx.array) -> mx.array:
    return mx.argsort(order)


def _gelu(x: mx.array) -> mx.array:
    return 0.5 * x * (1 + mx.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))

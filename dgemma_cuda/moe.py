"""The mixture of experts: a softmax router on the raw residual, and experts over rows sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from dgemma_cuda.quant import Experts, Linear

if TYPE_CHECKING:
    from dgemma_cuda.kernels import Kernels


@dataclass(frozen=True, slots=True)
class Router:
    """`scale` [H] and `per_expert_scale` [E] are float32."""

    proj: Linear
    scale: Tensor
    per_expert_scale: Tensor
    top_k: int
    eps: float


@dataclass(frozen=True, slots=True)
class MoE:
    """Router and experts of one layer; `gate_up_proj` holds gate rows, then up rows."""

    router: Router
    gate_up_proj: Experts
    down_proj: Experts


def geglu(gate_up: Tensor) -> Tensor:
    """gelu_tanh(first half) * second half over the last axis."""
    gate, up = gate_up.chunk(2, dim=-1)
    return torch.nn.functional.gelu(gate, approximate="tanh") * up


def route(router: Router, x: Tensor, kernels: Kernels) -> tuple[Tensor, Tensor]:
    """Residual x [N, H] -> expert ids [N, k] and their float32 weights, renormalised before per_expert_scale."""
    normed = kernels.rms_norm(x, router.scale * x.shape[-1] ** -0.5, router.eps)
    top, ids = torch.topk(router.proj(normed).float(), router.top_k)
    return ids, torch.softmax(top, dim=-1) * router.per_expert_scale[ids]


def moe(layer: MoE, residual: Tensor, x: Tensor, kernels: Kernels) -> Tensor:
    """Route by `residual`, apply to the normed `x`, both [N, H]; the weighted sum is taken in float32."""
    ids, weights = route(layer.router, residual, kernels)
    return kernels.experts(x, ids, weights, layer.gate_up_proj, layer.down_proj)


def experts(x: Tensor, ids: Tensor, routing: Tensor, gate_up: Experts, down: Experts) -> Tensor:
    """The mixture by torch operations; see `kernels.naive`."""
    owners, order = ids.flatten().sort(stable=True)
    ends = torch.searchsorted(owners, torch.arange(gate_up.count, device=x.device), right=True).to(torch.int32)
    hidden = geglu(gate_up(x[order // ids.shape[1]], ends))
    out = down(hidden, ends)[_inverse(order)].view(*ids.shape, -1)
    return torch.bmm(routing[:, None], out.float())[:, 0].to(x.dtype)


def _inverse(order: Tensor) -> Tensor:
    inverse = torch.empty_like(order)
    inverse[order] = torch.arange(len(order), device=order.device)
    return inverse

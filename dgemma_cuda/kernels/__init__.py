"""Which implementation computes what: chosen once, when a model is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma_cuda.attention import attend
from dgemma_cuda.kernels import naive
from dgemma_cuda.moe import experts
from dgemma_cuda.norm import add_norm, norm_rotate, rms_norm
from dgemma_cuda.vocab import Picks, head

_PARTS = ("norm", "attention", "moe", "vocab", "self_conditioning", "linear")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a pass that have several implementations; `naive` says what they compute."""

    rms_norm: Callable[..., Tensor]
    add_norm: Callable[..., Tensor]
    norm_rotate: Callable[..., Tensor]
    attend: Callable[..., Tensor]
    experts: Callable[..., Tensor]
    head: Callable[..., tuple[Picks, Tensor]]
    names: Mapping[str, str]


def choose(device: torch.device, choice: str) -> Kernels:
    """Triton on a GPU and under Triton's interpreter, torch operations elsewhere, the naive twins on request."""
    if choice == "reference":
        functions = (naive.rms_norm, naive.add_norm, naive.norm_rotate, naive.attend, naive.experts, naive.head)
        return Kernels(*functions, names=dict.fromkeys(_PARTS, "naive"))
    if fused_available(device):
        from dgemma_cuda.kernels import fused

        functions = (fused.rms_norm, fused.add_norm, fused.norm_rotate, fused.attend, fused.experts, fused.head)
        return Kernels(*functions, names=dict.fromkeys(_PARTS, "triton"))
    functions = (rms_norm, add_norm, norm_rotate, attend, experts, head)
    return Kernels(*functions, names=dict.fromkeys(_PARTS, "torch"))


def fused_available(device: torch.device) -> bool:
    """Whether the Triton kernels run here."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"

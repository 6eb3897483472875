"""Which implementation computes what: chosen once, when a model is opened."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma_cuda.attention import attend, one_by_one, store
from dgemma_cuda.inputs import Ragged
from dgemma_cuda.kernels import naive
from dgemma_cuda.moe import experts
from dgemma_cuda.norm import add_norm, norm_rotate, rms_norm
from dgemma_cuda.self_conditioning import Soft
from dgemma_cuda.vocab import Picks, head

_PARTS = ("norm", "attention", "moe", "vocab", "self_conditioning", "linear")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a pass that have several implementations; `naive` says what they compute.

    `unfinished_head` is a head without a look at the device, where there is one.
    """

    rms_norm: Callable[..., Tensor]
    add_norm: Callable[..., Tensor]
    norm_rotate: Callable[..., Tensor]
    store: Callable[[Tensor, Tensor, Ragged], None]
    attend: Callable[[Tensor, Ragged], Tensor]
    experts: Callable[..., Tensor]
    head: Callable[..., tuple[Picks, Tensor]]
    names: Mapping[str, str]
    unfinished_head: Callable[..., tuple[Picks, Soft]] | None = None


def choose(device: torch.device, choice: str) -> Kernels:
    """Triton on a GPU and under Triton's interpreter, torch operations elsewhere, the naive twins on request."""
    if choice == "reference":
        functions = (naive.rms_norm, naive.add_norm, naive.norm_rotate, store, one_by_one(naive.attend))
        return Kernels(*functions, naive.experts, naive.head, dict.fromkeys(_PARTS, "naive"))
    if fused_available(device):
        from dgemma_cuda.kernels import fused

        functions = (fused.rms_norm, fused.add_norm, fused.norm_rotate, fused.store, fused.attend)
        names = dict.fromkeys(_PARTS, "triton")
        return Kernels(*functions, fused.experts, fused.head, names, fused.unfinished_head)
    functions = (rms_norm, add_norm, norm_rotate, store, one_by_one(attend))
    return Kernels(*functions, experts, head, dict.fromkeys(_PARTS, "torch"))


def fused_available(device: torch.device) -> bool:
    """Whether the Triton kernels run here."""
    return device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1"

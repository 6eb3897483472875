"""Which implementation computes what: chosen once, when a model is opened."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dgemma_cuda.kernels import naive, plain


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a pass that have more than one implementation; signatures as in `naive`."""

    rms_norm: Callable[..., Tensor]
    add_norm: Callable[..., Tensor]
    norm_rotate: Callable[..., Tensor]
    attend: Callable[..., Tensor]
    experts: Callable[..., Tensor]
    head: Callable[..., tuple[plain.Picks, Tensor]]
    names: dict[str, str] = field(default_factory=dict)


_PARTS = ("norm", "attention", "moe", "vocab", "self_conditioning", "linear")


def choose(device: torch.device, choice: str) -> Kernels:
    """Triton on a GPU and under its interpreter, torch operations elsewhere, the naive twins on request."""
    if choice == "reference":
        return _kernels(naive, "naive")
    if device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1":
        from dgemma_cuda.kernels import fused

        return _kernels(fused, "triton")
    return _kernels(plain, "torch")


def _kernels(module: object, name: str) -> Kernels:
    functions = ("rms_norm", "add_norm", "norm_rotate", "attend", "experts", "head")
    return Kernels(*(getattr(module, each) for each in functions), names=dict.fromkeys(_PARTS, name))

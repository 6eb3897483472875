"""Which implementation computes what: chosen once, when a model is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from dgemma_mlx.attention import attend
from dgemma_mlx.kernels import naive
from dgemma_mlx.moe import experts
from dgemma_mlx.norm import add_norm, norm_rotate, rms_norm
from dgemma_mlx.vocab import Picks, head

_PARTS = ("norm", "attention", "moe", "vocab", "self_conditioning", "linear")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a pass that have several implementations; `naive` says what they compute."""

    rms_norm: Callable[..., mx.array]
    add_norm: Callable[..., mx.array]
    norm_rotate: Callable[..., mx.array]
    attend: Callable[..., mx.array]
    experts: Callable[..., mx.array]
    head: Callable[..., tuple[Picks, mx.array]]
    names: Mapping[str, str]


def choose(device: mx.Device, choice: str) -> Kernels:
    """Metal kernels for the vocabulary side on a GPU, MLX operations elsewhere, the naive twins on request."""
    if choice == "reference":
        functions = (naive.rms_norm, naive.add_norm, naive.norm_rotate, naive.attend, naive.experts, naive.head)
        return Kernels(*functions, names=dict.fromkeys(_PARTS, "naive"))
    names = dict.fromkeys(_PARTS, "mlx")
    if fused_available(device):
        from dgemma_mlx.kernels import fused

        names |= dict.fromkeys(fused.PARTS, "metal")
        functions = (rms_norm, add_norm, norm_rotate, attend, experts, fused.head)
        return Kernels(*functions, names=names)
    functions = (rms_norm, add_norm, norm_rotate, attend, experts, head)
    return Kernels(*functions, names=names)


def fused_available(device: mx.Device) -> bool:
    """Whether the Metal kernels run here."""
    return bool(device.type == mx.DeviceType.gpu and mx.metal.is_available())

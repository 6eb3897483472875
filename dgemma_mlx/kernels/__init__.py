"""Which implementation computes what: chosen once, when a model is opened."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import mlx.core as mx

from dgemma_mlx.attention import attend
from dgemma_mlx.kernels import naive
from dgemma_mlx.moe import experts, route
from dgemma_mlx.norm import add_norm, norm_rotate, rms_norm
from dgemma_mlx.vocab import Picks, head

_PARTS = ("norm", "router", "attention", "moe", "vocab", "self_conditioning", "linear", "graph")


@dataclass(frozen=True, slots=True)
class Kernels:
    """The operations of a pass that have several implementations; `naive` says what they compute."""

    rms_norm: Callable[..., mx.array]
    add_norm: Callable[..., mx.array]
    norm_rotate: Callable[..., mx.array]
    route: Callable[..., tuple[mx.array, mx.array]]
    attend: Callable[..., mx.array]
    experts: Callable[..., mx.array]
    head: Callable[..., tuple[Picks, mx.array]]
    names: Mapping[str, str]


def choose(device: mx.Device, choice: str) -> Kernels:
    """Metal kernels on a GPU, MLX operations elsewhere, the naive twins on request.

    How the experts are computed on a GPU is settled in `binding`, once there are weights to time.
    """
    if choice == "reference":
        norms = (naive.rms_norm, naive.add_norm, naive.norm_rotate)
        functions = (*norms, naive.route, naive.attend, naive.experts, naive.head)
        return Kernels(*functions, names=dict.fromkeys(_PARTS, "naive"))
    plain = Kernels(
        *(rms_norm, add_norm, norm_rotate), route, attend, experts, head, names=dict.fromkeys(_PARTS, "mlx")
    )
    if not fused_available(device):
        return plain
    from dgemma_mlx.kernels.trial import with_metal

    return with_metal(plain)


def fused_available(device: mx.Device) -> bool:
    """Whether the Metal kernels run here."""
    return bool(device.type == mx.DeviceType.gpu and mx.metal.is_available())

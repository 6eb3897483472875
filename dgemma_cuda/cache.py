"""One sequence's keys and values in linear buffers, and its self-conditioning signal.

Slot i of a buffer holds position `origin` + i. Sliding layers keep W - 1 keys before the settled length and everything
since, so that `truncate` is exact back to there; full layers keep everything. A canvas borrows the slots behind the
committed tokens, which the next encode overwrites.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgemma.config import LayerShape, ModelConfig

_ROUND = 256


class Context:
    """Keys after norm and RoPE, values after their norm, [kv_heads, capacity, head_dim] a layer.

    `pointers` [layers, 2] are the addresses of their buffers.
    """

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.length = 0
        self.signal: Tensor | None = None
        self._reach = config.sliding_window - 1
        self._settled = 0
        self._origin = {"sliding_attention": 0, "full_attention": 0}
        self._shapes = config.layers
        self._keys = [_buffer(shape, 0, device, dtype) for shape in config.layers]
        self._values = [_buffer(shape, 0, device, dtype) for shape in config.layers]
        self.pointers: NDArray[np.int64] = np.zeros((len(config.layers), 2), np.int64)

    def settle(self) -> None:
        """See `dgemma.backend.Context`."""
        self._settled = self.length

    def truncate(self, length: int) -> bool:
        """See `dgemma.backend.Context`."""
        if length > self.length or self._origin["sliding_attention"] > max(0, length - self._reach):
            return False
        self.length = length
        self._settled = min(self._settled, length)
        return True

    def start_canvas(self) -> None:
        """See `dgemma.backend.Context`."""
        self.signal = None

    def close(self) -> None:
        """See `dgemma.backend.Context`."""
        self.signal = None
        self._keys, self._values = [], []

    @property
    def bytes(self) -> int:
        """Device memory held."""
        held = [*self._keys, *self._values, *([] if self.signal is None else [self.signal])]
        return sum(each.numel() * each.element_size() for each in held)

    def reserve(self, end: int) -> None:
        """Make room for positions up to `end` in every layer, dropping sliding keys that are out of reach."""
        origins = {
            "sliding_attention": max(self._origin["sliding_attention"], self._settled - self._reach),
            "full_attention": 0,
        }
        moved = {kind for kind in origins if self._short(kind, end)}
        for layer, shape in enumerate(self._shapes):
            if shape.kind in moved:
                self._move(layer, origins[shape.kind], end)
        self._origin |= {kind: origins[kind] for kind in moved}

    def write(self, layer: int, position: int, keys: Tensor, values: Tensor) -> None:
        """Put keys and values [kv_heads, T, head_dim] at positions `position`.. of `layer`."""
        start = position - self._origin[self._shapes[layer].kind]
        self._keys[layer][:, start : start + keys.shape[1]] = keys
        self._values[layer][:, start : start + keys.shape[1]] = values

    def first_visible(self, layer: int, position: int) -> int:
        """The first position that a pass starting at `position` may see in `layer` (the W - 1 rule)."""
        return max(0, position - self._reach) if self._shapes[layer].kind == "sliding_attention" else 0

    def window(self, layer: int) -> int | None:
        """How many tokens a causal row of `layer` sees, itself included; None for all."""
        return self._reach + 1 if self._shapes[layer].kind == "sliding_attention" else None

    def buffers(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of `layer`, a slot a position."""
        return self._keys[layer], self._values[layer]

    def capacity(self, layer: int) -> int:
        """How many slots the buffers of `layer` have."""
        return self._keys[layer].shape[1]

    def slots(self, layer: int, positions: tuple[int, int, int]) -> tuple[int, int, int]:
        """Where in the buffers of `layer` three positions stand."""
        origin = self._origin[self._shapes[layer].kind]
        first, end, place = positions
        return first - origin, end - origin, place - origin

    def _short(self, kind: str, end: int) -> bool:
        layer = next((index for index, shape in enumerate(self._shapes) if shape.kind == kind), None)
        return layer is not None and end - self._origin[kind] > self._keys[layer].shape[1]

    def _move(self, layer: int, origin: int, end: int) -> None:
        held = self._keys[layer].shape[1]
        needed = end - origin + (self._reach if origin else held // 2)
        capacity = max(held, -(-needed // _ROUND) * _ROUND)
        self._keys[layer] = self._moved(self._keys[layer], layer, origin, capacity)
        self._values[layer] = self._moved(self._values[layer], layer, origin, capacity)
        self.pointers[layer] = self._keys[layer].data_ptr(), self._values[layer].data_ptr()

    def _moved(self, old: Tensor, layer: int, origin: int, capacity: int) -> Tensor:
        new = _buffer(self._shapes[layer], capacity, old.device, old.dtype)
        skipped = origin - self._origin[self._shapes[layer].kind]
        kept = max(0, self.length - origin)
        new[:, :kept] = old[:, skipped : skipped + kept]
        return new


def _buffer(shape: LayerShape, capacity: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    return torch.empty(shape.kv_heads, capacity, shape.head_dim, device=device, dtype=dtype)

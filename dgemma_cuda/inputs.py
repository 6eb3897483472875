"""What a pass reads besides weights and caches, in buffers that one copy fills and whose addresses never change.

Cache addresses and lengths are data like tokens: what is recorded once serves every sequence at every length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from dgemma.batch import Batch, Segment
from dgemma.config import ModelConfig
from dgemma_cuda.cache import Context

COLUMNS = (
    8  # Of a table: first row, rows, first slot seen, end slot, slot of the first row, capacity, causal; one unused.
)
_ALIGNED = 4  # Words of 4 bytes: 16 bytes, which kernels are specialised for.


@dataclass(frozen=True, slots=True)
class Form:
    """What a recorded pass is fixed to.

    `sequences` holds rows and role (True for a canvas) of each job, causal ones first; `conditioned` says whether a
    self-conditioning signal comes in.
    """

    sequences: tuple[tuple[int, bool], ...]
    predicted: int
    conditioned: bool

    @classmethod
    def of(cls, batch: Batch) -> Form:
        """That of `batch`."""
        conditioned = any(context(segment).signal is not None for segment in batch.canvases)
        sequences = tuple((segment.rows, segment.canvas) for segment in batch.segments)
        return cls(sequences, len(batch.predicted), conditioned)

    @property
    def rows(self) -> int:
        """All rows."""
        return sum(rows for rows, _ in self.sequences)

    @property
    def causal(self) -> int:
        """Rows of encode jobs."""
        return sum(rows for rows, canvas in self.sequences if not canvas)

    @property
    def canvas_rows(self) -> int:
        """Rows of denoise jobs."""
        return self.rows - self.causal


@dataclass(frozen=True, slots=True)
class Ragged:
    """The sequences of a pass as attention in one layer finds them.

    Kernels read `table` [S, COLUMNS], `pointers` [S, 2] of keys and values and `owners` [N], the sequence of a row, on
    the device. Torch operations walk over `segments`.
    """

    table: Tensor
    pointers: Tensor
    owners: Tensor
    kv_heads: int
    longest: int
    causal: bool
    window: int | None
    segments: tuple[Segment, ...]
    layer: int


class Inputs:
    """The buffers of passes of one form; views: `tokens`, `positions`, `predicted`, `temperatures` and so on."""

    def __init__(self, form: Form, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self.form, self._window = form, config.sliding_window
        self._layers = config.layers
        self._kinds = {shape.kind: index for index, shape in reversed(list(enumerate(config.layers)))}
        sequences = len(form.sequences)
        sizes = {"pointers": 4 * len(self._layers) * sequences}
        sizes |= dict.fromkeys(self._kinds, COLUMNS * sequences)
        sizes |= dict.fromkeys(("tokens", "positions", "owners"), form.rows)
        sizes |= dict.fromkeys(("predicted", "temperatures", "uniforms", "greedy"), form.predicted)
        self._places = dict(_places(sizes))
        total = max((place.stop for place in self._places.values()), default=0)
        on_gpu = device.type == "cuda"
        self._staged = torch.zeros(total + _ALIGNED, dtype=torch.int32, device="cpu", pin_memory=on_gpu)
        self._held = torch.zeros_like(self._staged, device=device) if on_gpu else self._staged
        self.signal = torch.zeros(form.canvas_rows, config.hidden_size, dtype=dtype, device=device)
        self.segments: tuple[Segment, ...] = ()
        self.tokens, self.positions = self._view("tokens"), self._view("positions")
        self.predicted, self.greedy = self._view("predicted"), self._view("greedy")
        self.temperatures = self._view("temperatures").view(torch.float32)
        self.uniforms = self._view("uniforms").view(torch.float32)

    def fill(self, batch: Batch) -> None:
        """Take over `batch`, whose contexts have room for it."""
        self.segments = batch.segments
        for name in ("tokens", "positions", "predicted", "greedy"):
            self._put(name, getattr(batch, name))
        for name in ("temperatures", "uniforms"):
            self._put(name, getattr(batch, name).view(np.int32))
        self._put("owners", np.repeat(np.arange(len(batch.segments)), [each.rows for each in batch.segments]))
        for kind, layer in self._kinds.items():
            self._put(kind, np.array([_entry(segment, layer) for segment in batch.segments]))
        pointers = [context(segment).pointers for segment in batch.segments]
        self._put("pointers", np.stack(pointers, axis=1).view(np.int32))
        if self._held is not self._staged:
            self._held.copy_(self._staged, non_blocking=True)
        if self.form.conditioned:
            self._take_signals()

    def layer(self, index: int) -> Ragged:
        """The sequences as layer `index` finds them."""
        sequences, shape = len(self.form.sequences), self._layers[index]
        addresses = self._view("pointers").view(torch.int64).view(-1, sequences, 2)
        return Ragged(
            table=self._view(shape.kind).view(sequences, COLUMNS),
            pointers=addresses[index],
            owners=self._view("owners"),
            kv_heads=shape.kv_heads,
            longest=max(rows for rows, _ in self.form.sequences),
            causal=self.form.causal > 0,
            window=self._window if shape.kind == "sliding_attention" else None,
            segments=self.segments,
            layer=index,
        )

    @property
    def addresses(self) -> tuple[int, ...]:
        """Where the buffers lie."""
        return self._held.data_ptr(), self.signal.data_ptr()

    def signal_rows(self, segment: Segment) -> slice:
        """Where in `signal` a canvas stands."""
        first = segment.start - self.form.causal
        return slice(first, first + segment.rows)

    def _take_signals(self) -> None:
        """A canvas without a signal gets zeros, which the self-conditioning MLP turns into zeros."""
        for segment in self.segments:
            if segment.canvas:
                rows, signal = self.signal[self.signal_rows(segment)], context(segment).signal
                rows.zero_() if signal is None else rows.copy_(signal)

    def _put(self, name: str, values: NDArray[np.generic]) -> None:
        self._staged.numpy()[self._places[name]] = values.reshape(-1)

    def _view(self, name: str) -> Tensor:
        return self._held[self._places[name]]


def context(segment: Segment) -> Context:
    """The cache of a segment."""
    assert isinstance(segment.context, Context)
    return segment.context


def _places(sizes: dict[str, int]) -> Iterator[tuple[str, slice]]:
    start = 0
    for name, size in sizes.items():
        yield name, slice(start, start + size)
        start += -(-size // _ALIGNED) * _ALIGNED


def _entry(segment: Segment, layer: int) -> tuple[int, ...]:
    """A sequence's line of the table that all layers like `layer` share."""
    held, position = context(segment), segment.position
    seen = held.slots(layer, (held.first_visible(layer, position), segment.end, position))
    return segment.start, segment.rows, *seen, held.capacity(layer), int(not segment.canvas), 0

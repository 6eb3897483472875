"""Random weights whose logits look like those of a canvas half-way through its denoising, plain or in MLX formats.

Packed weights are drawn as random codes: quantizing real ones would change nothing about the speed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.tensor_file import Entry, as_bfloat16
from dgemma.config import ModelConfig
from dgemma.names import EMBEDDING, expected_tensors, module
from dgemma.quantization import QuantSpec

_POOL = 1 << 22
_E2M1_RMS = 2.926
_HALF_TO_TWO_RMS = 1.25
_LEAD = 1.15
_SUBNORMAL = 2.0**-9
Values = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Formats:
    """How weights are stored: plain in `dtype`, or packed: `wide` for embedding, attention, dense and router."""

    dtype: str = "F32"
    narrow: QuantSpec | None = None
    wide: QuantSpec | None = None

    def spec(self, name: str, shape: tuple[int, ...]) -> QuantSpec | None:
        """The packed format of a canonical tensor; norms, scales and scalars stay plain."""
        if self.narrow is None or len(shape) < 2:
            return None
        return self.narrow if ".experts." in name or "self_conditioning" in name else self.wide

    def config(self, model: ModelConfig) -> dict[str, Any] | None:
        """The `quantization` of config.json."""
        if self.narrow is None or self.wide is None:
            return None
        wide = {
            module(name): _as_dict(self.wide)
            for name, shape in expected_tensors(model).items()
            if self.spec(name, shape) == self.wide != self.narrow
        }
        return _as_dict(self.narrow) | wide


_EIGHT = QuantSpec(8, 64)
FORMATS: Mapping[str, Formats] = {
    "fp32": Formats(),
    "bf16": Formats("BF16"),
    "mlx-8bit": Formats("BF16", _EIGHT, _EIGHT),
    "mlx-4bit": Formats("BF16", QuantSpec(4, 64), _EIGHT),
    "mxfp4": Formats("BF16", QuantSpec(4, 32, "mxfp4"), _EIGHT),
    "nvfp4": Formats("BF16", QuantSpec(4, 16, "nvfp4"), _EIGHT),
    "mxfp8": Formats("BF16", QuantSpec(8, 32, "mxfp8"), QuantSpec(8, 32, "mxfp8")),
}


class Weights:
    """Draws every tensor of a model; `loudness` is the standard deviation of its logits before the softcap."""

    def __init__(self, config: ModelConfig, formats: Formats, loudness: float, seed: int = 0) -> None:
        self._config, self._formats, self._loudness = config, formats, loudness
        self._random = np.random.default_rng(seed)
        self._pool = self._random.standard_normal(_POOL, np.float32)

    def entries(self) -> Iterator[Entry]:
        """Everything that the checkpoint holds."""
        for name, shape in expected_tensors(self._config).items():
            spec = self._formats.spec(name, shape)
            if spec is None:
                yield self._plain(name, shape)
            else:
                yield from self._packed(name, shape, spec)

    def _plain(self, name: str, shape: tuple[int, ...]) -> Entry:
        dtype = self._formats.dtype

        def make() -> NDArray[np.generic]:
            if len(shape) < 2:
                values = np.full(shape, self._constant(name), np.float32)
            else:
                values = self._normal(shape, self._std(name, shape))
            return as_bfloat16(values) if dtype == "BF16" else values

        return Entry(name, dtype, shape, make)

    def _constant(self, name: str) -> float:
        """Query and key norms that keep attention soft, router scales that undo its division, and loud layers."""
        if name.endswith(("q_norm.weight", "k_norm.weight")):
            return 0.4
        if name.endswith(("post_attention_layernorm.weight", "post_feedforward_layernorm.weight")):
            return self._layer_loudness()
        return math.sqrt(self._config.hidden_size) if name.endswith("router.scale") else 1.0

    def _layer_loudness(self) -> float:
        """So loud that a position's own token is a little likelier than the best of all others.

        Quieter layers let the model copy its canvas, louder ones leave nothing but noise.
        """
        best = _LEAD * self._loudness * math.sqrt(2 * math.log(self._config.vocab_size))
        own = self._loudness * math.sqrt(self._config.hidden_size)
        return math.sqrt(max((own / best) ** 2 - 1, 1.0) / (2 * self._config.num_hidden_layers))

    def _std(self, name: str, shape: tuple[int, ...]) -> float:
        return (self._loudness if name == EMBEDDING else 1.0) * shape[-1] ** -0.5

    def _normal(self, shape: tuple[int, ...], std: float) -> Values:
        """Normal numbers from a pool that large tensors walk through more than once."""
        start = int(self._random.integers(_POOL))
        return np.resize(np.roll(self._pool, -start), shape) * np.float32(std)

    def _packed(self, name: str, shape: tuple[int, ...], spec: QuantSpec) -> Iterator[Entry]:
        *rows, columns = shape
        base, std = module(name), self._std(name, shape)
        words = (*rows, columns * spec.bits // 32)
        groups = (*rows, columns // spec.group_size)
        yield Entry(f"{base}.weight", "U32", words, lambda: self._codes(words, spec))
        if spec.mode == "affine":
            step = std / math.sqrt((4**spec.bits - 1) / 12)
            yield Entry(f"{base}.scales", "BF16", groups, lambda: as_bfloat16(np.full(groups, step, np.float32)))
            offset = -step * (2**spec.bits - 1) / 2
            yield Entry(f"{base}.biases", "BF16", groups, lambda: as_bfloat16(np.full(groups, offset, np.float32)))
        else:
            yield Entry(f"{base}.scales", "U8", groups, lambda: np.full(groups, _scale_byte(spec, std), np.uint8))

    def _codes(self, words: tuple[int, ...], spec: QuantSpec) -> NDArray[np.generic]:
        drawn = self._random.integers(0, 1 << 32, words, np.uint32)
        if spec.mode != "mxfp8":
            return drawn
        return (drawn & np.uint32(0x8F8F8F8F)) | np.uint32(0x30303030)


def _scale_byte(spec: QuantSpec, std: float) -> int:
    """The shared exponent (mx formats) or the small float (nvfp4) that brings random codes near `std`."""
    scale = std / (_HALF_TO_TWO_RMS if spec.mode == "mxfp8" else _E2M1_RMS)
    if spec.mode == "nvfp4":
        return max(1, min(7, round(scale / _SUBNORMAL)))
    return 127 + round(math.log2(scale))


def _as_dict(spec: QuantSpec) -> dict[str, Any]:
    return {"group_size": spec.group_size, "bits": spec.bits, "mode": spec.mode}

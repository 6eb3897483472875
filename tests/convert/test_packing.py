"""The numpy formats are MLX's own: codes, scales and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dgemma.quantization import QuantSpec
from dgemma_convert.floats import narrow, to_e4m3, widen
from dgemma_convert.packing import dequantize, pack, quantize, unpack

mx = pytest.importorskip("mlx.core")
torch = pytest.importorskip("torch")

SPECS = [QuantSpec(bits, size) for bits in (2, 3, 4, 5, 6, 8) for size in (32, 128)] + [
    QuantSpec(4, 32, "mxfp4"),
    QuantSpec(8, 32, "mxfp8"),
    QuantSpec(4, 16, "nvfp4"),
]


@pytest.mark.parametrize("dtype", ["F32", "BF16", "F16"])
@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.mode}{spec.bits}g{spec.group_size}")
def test_quantizes_as_mlx_does(spec: QuantSpec, dtype: str) -> None:
    types = {"F32": mx.float32, "BF16": mx.bfloat16, "F16": mx.float16}
    keywords: dict[str, Any] = {"bits": spec.bits, "group_size": spec.group_size, "mode": spec.mode}
    values = widen(narrow(awkward(), dtype), dtype)
    theirs = mx.quantize(mx.array(values).astype(types[dtype]), **keywords)
    ours = quantize(values, spec, dtype)
    for name, part in zip(("weight", "scales", "biases"), theirs, strict=False):
        stored = part.view(mx.uint16) if part.dtype == mx.bfloat16 else part
        assert np.array_equal(ours[name], np.array(stored)), name
    single = [part.astype(mx.float32) if part.dtype in types.values() else part for part in theirs]
    assert np.array_equal(dequantize(ours, spec, dtype), np.array(mx.dequantize(*single, dtype=mx.float32, **keywords)))


def awkward() -> np.ndarray:
    values = np.random.default_rng(0).normal(size=(64, 128)).astype(np.float32)
    values[0], values[1, :64], values[2], values[5] = 0, 3, np.abs(values[2]), -np.abs(values[5])
    values[4] *= 1e3
    values[6] = np.random.default_rng(1).integers(-24, 25, 128) / 4
    return values


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
def test_packing_is_reversible(bits: int) -> None:
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (7, 96), dtype=np.uint8)
    assert pack(codes, bits).shape == (7, 96 * bits // 32)
    assert np.array_equal(unpack(pack(codes, bits), bits), codes)


def test_small_floats_round_as_pytorch_does() -> None:
    values = np.concatenate([np.linspace(-460, 460, 20001), np.linspace(-0.05, 0.05, 2001), [np.nan, 2**-10, 447]])
    values = values.astype(np.float32)
    theirs = torch.from_numpy(values).clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    kept = ~np.isnan(values)
    assert np.array_equal(to_e4m3(values)[kept], theirs[kept])
    halves = torch.from_numpy(values).to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(narrow(values, "BF16")[kept], halves[kept])

"""Packed weights on PyTorch have MLX's values, bit for bit, and products take them a slab at a time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dgemma.quantization import QuantSpec
from dgemma_cuda import quant

mx = pytest.importorskip("mlx.core")

SPECS = [QuantSpec(bits, 32) for bits in (2, 3, 4, 5, 6, 8)] + [
    QuantSpec(4, 64),
    QuantSpec(4, 32, "mxfp4"),
    QuantSpec(8, 32, "mxfp8"),
    QuantSpec(4, 16, "nvfp4"),
]
each_spec = pytest.mark.parametrize("spec", SPECS, ids=lambda spec: f"{spec.mode}{spec.bits}g{spec.group_size}")


@each_spec
def test_values_are_those_of_mlx(spec: QuantSpec) -> None:
    packed, values = pack(np.random.default_rng(0).normal(size=(48, 128)), spec)
    assert np.array_equal(packed.dequantized().numpy(), values)


def test_every_scale_byte() -> None:
    for mode, size, words in (("mxfp4", 32, 4), ("mxfp8", 32, 8), ("nvfp4", 16, 2)):
        spec = QuantSpec(8 if mode == "mxfp8" else 4, size, mode)
        weight = np.random.default_rng(1).integers(0, 2**31, (256, words), dtype=np.uint32)
        scales = np.arange(256, dtype=np.uint8)[:, None]
        theirs = mx.dequantize(mx.array(weight), mx.array(scales), dtype=mx.float32, **keywords(spec))
        arrays = torch.from_numpy(weight.view(np.int32)), torch.from_numpy(scales)
        ours = quant.Packed(*arrays, None, None, spec).dequantized().numpy()
        assert np.array_equal(ours, np.array(theirs), equal_nan=True), mode


@each_spec
def test_products(spec: QuantSpec, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quant, "_SLAB", 1000)
    packed, values = pack(np.random.default_rng(0).normal(size=(48, 128)), spec)
    multiplier = torch.linspace(0.5, 2, 48)
    scaled = torch.from_numpy(values) * multiplier[:, None]
    multiplied = quant.Packed(packed.weight, packed.scales, packed.biases, multiplier, spec)
    x, p = torch.randn(5, 128), torch.rand(3, 48)
    embedding = quant.PackedEmbedding(multiplied, torch.float32)
    assert torch.allclose(quant.PackedLinear(multiplied)(x), x @ scaled.T, atol=1e-4)
    assert torch.allclose(embedding.mix(p), p @ scaled, atol=1e-4)
    assert torch.equal(embedding.rows(torch.tensor([7, 0])), scaled[[7, 0]])


def test_experts_without_rows_are_left_packed() -> None:
    spec = QuantSpec(4, 32)
    packed, values = pack(np.random.default_rng(0).normal(size=(3 * 16, 32)), spec)
    stack = quant.Packed(*(part.view(3, 16, -1) for part in (packed.weight, packed.scales, packed.biases)), None, spec)
    x, ends = torch.randn(6, 32), torch.tensor([2, 2, 6], dtype=torch.int32)
    per_expert = torch.from_numpy(values).view(3, 16, 32)
    expected = torch.cat([x[:2] @ per_expert[0].T, x[2:] @ per_expert[2].T])
    assert torch.allclose(quant.PackedExperts(stack)(x, ends), expected, atol=1e-5)
    assert quant.PackedExperts(stack)(x[:0], torch.zeros(3, dtype=torch.int32)).shape == (0, 16)


def pack(values: Any, spec: QuantSpec) -> tuple[quant.Packed, Any]:
    parts = mx.quantize(mx.array(values.astype(np.float32)), **keywords(spec))
    unpacked = np.array(mx.dequantize(*parts, dtype=mx.float32, **keywords(spec)))
    weight, scales, *biases = (np.array(part) for part in parts)
    tensors = torch.from_numpy(weight.view(np.int32)), torch.from_numpy(scales)
    return quant.Packed(*tensors, torch.from_numpy(biases[0]) if biases else None, None, spec), unpacked


def keywords(spec: QuantSpec) -> dict[str, Any]:
    return {"bits": spec.bits, "group_size": spec.group_size, "mode": spec.mode}

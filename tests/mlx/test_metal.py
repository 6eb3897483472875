"""Metal kernel bodies, run as C++ on the CPU, against their twins; rows longer than a block and ugly ones."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.close import assert_close, outside

mx = pytest.importorskip("mlx.core")

from dgemma_mlx.kernels import fused, naive  # noqa: E402
from dgemma_mlx.quant import Packed, PackedEmbedding, PlainEmbedding  # noqa: E402
from dgemma_mlx.vocab import Draws, softcap  # noqa: E402
from tests.mlx import metal  # noqa: E402
from tests.mlx.weights import SPECS  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module", autouse=True)
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with metal.in_place(metal.maker(tmp_path_factory.mktemp("kernels"))):
        yield


class Wide:
    """An embedding whose logits are those of the low precision and whose mixture is exact."""

    def __init__(self, table: Any, dtype: Any) -> None:
        self._table, self._dtype = table, dtype

    def logits(self, x: Any) -> Any:
        return self._table.logits(x.astype(self._dtype))

    def mix(self, shares: Any) -> Any:
        return shares.astype(mx.float32) @ self._table.rows(mx.arange(shares.shape[1])).astype(mx.float32)


@pytest.mark.parametrize("sparse", [False, True], ids=["exact", "sparse"])
@pytest.mark.parametrize(
    ("kind", "vocab", "dtype"),
    [
        ("random", 4096 + 700, "bfloat16"),
        ("flat", 700, "bfloat16"),
        ("one-hot", 4097, "float16"),
        ("random", 100, "float32"),
    ],
)
def test_plain_embedding(kind: str, vocab: int, dtype: str, sparse: bool) -> None:
    weight = _normal((vocab, 32), 0) * (0.01 if kind == "flat" else 0.5)
    x = weight[mx.arange(7) * (vocab // 7)] * 8 if kind == "one-hot" else _normal((7, 32), 1)
    check(PlainEmbedding(weight.astype(getattr(mx, dtype))), x, getattr(mx, dtype), sparse)


@pytest.mark.parametrize("name", SPECS)
def test_packed_embedding(name: str) -> None:
    spec = SPECS[name]
    stored = mx.quantize(_normal((300, 64), 2), group_size=spec.group_size, bits=spec.bits, mode=spec.mode)
    weight, scales, biases = (*stored, None)[:3]
    multiplier = mx.array(np.linspace(0.5, 1.5, 300, dtype=np.float32)) if name == "nvfp4" else None
    check(
        PackedEmbedding(Packed(weight, scales, biases, multiplier, spec), mx.bfloat16),
        _normal((7, 64), 3),
        mx.bfloat16,
        True,
    )


def check(table: Any, x: Any, dtype: Any, sparse: bool) -> None:
    rng = np.random.default_rng(5)
    uniforms = rng.random(7, np.float32)
    uniforms[3], uniforms[4] = 0, 1 - 2.0**-24
    draws = Draws(mx.array(rng.random(7, np.float32) + 0.4), mx.array(uniforms), mx.arange(7) % 3 == 0)
    arguments = (30.0, draws, 2, dtype, sparse)
    exact, soft = naive.head(table, x.astype(dtype), *arguments)
    picks, found = fused.head(table, x.astype(dtype), *arguments)
    wide = naive.head(Wide(table, dtype), x.astype(dtype).astype(mx.float32), *arguments)[1]
    assert np.array_equal(picks.argmax, exact.argmax)
    drawn = np.flatnonzero(np.arange(7) % 3)
    scores = np.array(softcap(table.logits(x.astype(dtype)), 30.0) / draws.temperatures[:, None])
    assert np.array_equal(np.array(picks.sampled)[::3], np.array(exact.argmax)[::3])
    assert outside(scores[drawn], uniforms[drawn], np.array(picks.sampled)[drawn]) < 2e-6
    assert np.abs(np.array(picks.entropy) - np.array(exact.entropy)).max() < 1e-4
    assert np.abs(np.array(picks.margin) - np.array(exact.margin)).max() < 1e-5
    limit = 2e3 if sparse and dtype == mx.float32 else 2
    assert_close(
        "self-conditioning", wide, np.array(soft.astype(mx.float32)), np.array(found.astype(mx.float32)), limit
    )


def _normal(shape: tuple[int, ...], seed: int) -> Any:
    return mx.array(np.random.default_rng(seed).normal(size=shape).astype(np.float32))

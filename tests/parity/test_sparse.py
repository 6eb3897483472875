"""Sparse self-conditioning against the full product on adversarial logits: no row loses more than its share of mass."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

LOSS = 2.0**-12
ROWS, VOCAB, WIDTH = 5, 5000, 24


def scores(kind: str) -> np.ndarray:
    """Scores [ROWS, VOCAB] between -75 and 75."""
    rng = np.random.default_rng(0)
    noise = rng.normal(size=(ROWS, VOCAB)).astype(np.float32)
    if kind == "flat":
        return noise * 0.01
    if kind == "tail":  # Each id just out of reach, together most of the mass.
        found = np.full((ROWS, VOCAB), -14.1, np.float32)
        found[:, 7] = 0
        return found + np.log(np.float32(100)) * (np.arange(VOCAB) % 2)
    found = noise - 40
    peaks = {"one-hot": [70.0], "two-peaked": [70.0, 69.9], "random": []}[kind]
    for place, height in enumerate(peaks):
        found[np.arange(ROWS), np.arange(ROWS) * 900 + 400 * place] = height
    return noise * 4 if kind == "random" else found


@pytest.mark.parametrize("kind", ["flat", "one-hot", "two-peaked", "tail", "random"])
@pytest.mark.parametrize("name", ["cuda", "mlx"])
def test_loss_is_bounded(name: str, kind: str) -> None:
    given, weight = scores(kind), np.random.default_rng(1).normal(size=(VOCAB, WIDTH)).astype(np.float32)
    weights = np.exp(given.astype(np.float64) - given.max(-1, keepdims=True))
    exact = weights / weights.sum(-1, keepdims=True) @ weight.astype(np.float64)
    found = _torch(given, weight) if name == "cuda" else _mlx(given, weight)
    assert np.abs(found - exact).max() <= LOSS * np.abs(weight).max() + 1e-5


def _torch(given: np.ndarray, weight: np.ndarray) -> Any:
    torch = pytest.importorskip("torch")
    from dgemma_cuda.quant import PlainEmbedding
    from dgemma_cuda.self_conditioning import sparse_mixture

    return sparse_mixture(PlainEmbedding(torch.from_numpy(weight)), torch.from_numpy(given), torch.float32).numpy()


def _mlx(given: np.ndarray, weight: np.ndarray) -> Any:
    mx = pytest.importorskip("mlx.core")
    from dgemma_mlx.quant import PlainEmbedding
    from dgemma_mlx.self_conditioning import sparse_mixture

    with mx.stream(mx.cpu):
        return np.array(sparse_mixture(PlainEmbedding(mx.array(weight)), mx.array(given), mx.float32))

"""The router alone: the norm behind the experts hides its renormalisation from the logits."""

from __future__ import annotations

import importlib
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.parity.support import gap

HIDDEN, EXPERTS, TOP, EPS = 64, 8, 3, 1e-6


@pytest.mark.parametrize(
    ("package", "library", "convert"), [("dgemma_cuda", "torch", "from_numpy"), ("dgemma_mlx", "mlx.core", "array")]
)
def test_weights_sum_to_one_before_the_expert_scale(package: str, library: str, convert: str) -> None:
    to_array = getattr(pytest.importorskip(library), convert)
    draw = np.random.default_rng(0)
    x, scale, proj, per_expert = (
        draw.normal(size=shape).astype(np.float32) for shape in ((5, HIDDEN), HIDDEN, (EXPERTS, HIDDEN), EXPERTS)
    )
    moe = importlib.import_module(f"{package}.moe")
    router = _router(moe, *(to_array(each) for each in (proj, 24 * scale, 2 + per_expert)))
    kernels = SimpleNamespace(rms_norm=importlib.import_module(f"{package}.norm").rms_norm)
    arguments = (router, to_array(x)) if package == "dgemma_mlx" else (router, to_array(x), kernels)
    ids, weights = (np.asarray(each) for each in moe.route(*arguments))

    order = np.argsort(ids, axis=-1)
    expected_ids, expected = _expected(x, proj, 24 * scale, 2 + per_expert)
    assert np.array_equal(np.take_along_axis(ids, order, -1), expected_ids)
    assert gap(np.take_along_axis(weights, order, -1), expected) <= 1e-5
    assert weights.dtype == np.float32


def _router(moe: ModuleType, proj: Any, scale: Any, per_expert: Any) -> Any:
    return moe.Router(lambda x: x @ proj.T, scale, per_expert, TOP, EPS)


def _expected(
    x: NDArray, proj: NDArray, scale: NDArray, per_expert: NDArray
) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Chosen experts in ascending order and their weights: softmax over all, top k, renormalise, scale."""
    x, proj, scale, per_expert = (each.astype(np.float64) for each in (x, proj, scale, per_expert))
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + EPS) * scale * HIDDEN**-0.5
    scores = np.exp(normed @ proj.T)
    p = scores / scores.sum(-1, keepdims=True)
    ids = np.sort(np.argsort(-p, axis=-1)[:, :TOP], axis=-1)
    chosen = np.take_along_axis(p, ids, -1)
    return ids, chosen / chosen.sum(-1, keepdims=True) * per_expert[ids]

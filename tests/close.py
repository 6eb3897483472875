"""The one tolerance of the repository: an error is judged by that of the plain computation in the same dtype."""

from __future__ import annotations

from typing import Any

import numpy as np


def error(exact: Any, found: Any) -> float:
    """Root mean square error relative to the root mean square of `exact`; infinite for NaN or another shape."""
    exact, found = _host(exact), _host(found)
    if exact.shape != found.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.sqrt(np.mean((found - exact) ** 2)) / max(np.sqrt(np.mean(exact**2)), 1e-30))


def assert_close(name: str, exact: Any, plain: Any, found: Any, ratio: float = 2.0) -> None:
    """`found` strays from the float32 result `exact` at most `ratio` times as far as `plain`, its low-precision form.

    Where the plain path is exact, a float32 rounding is allowed.
    """
    allowed, strayed = max(error(exact, plain), 1e-6), error(exact, found)
    assert strayed <= ratio * allowed, f"{name}: {strayed / allowed:.2f} times the plain path's error {allowed:.2e}"


def outside(scores: Any, uniforms: Any, sampled: Any) -> float:
    """How far the numbers lie outside the CDF intervals of what was sampled by them from softmax(scores), at most."""
    scores, uniforms, ids = _host(scores), _host(uniforms), _host(sampled).astype(np.int64)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    cumulated = np.cumsum(weights / weights.sum(-1, keepdims=True), axis=-1)
    rows = np.arange(len(scores))
    below = np.where(ids > 0, cumulated[rows, ids - 1], 0)
    return float(np.maximum(below - uniforms, uniforms - cumulated[rows, ids]).max())


def _host(array: Any) -> np.ndarray:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array, np.float64)

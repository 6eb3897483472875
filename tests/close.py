"""The one tolerance of the repository: an error is judged by that of the plain computation in the same dtype."""

from __future__ import annotations

from typing import Any

import numpy as np


def error(exact: Any, found: Any) -> float:
    """Root mean square error relative to the root mean square of `exact`; infinite for NaN or another shape."""
    exact, found = (np.asarray(each.cpu() if hasattr(each, "cpu") else each, np.float64) for each in (exact, found))
    if exact.shape != found.shape or not np.isfinite(found).all():
        return float("inf")
    return float(np.sqrt(np.mean((found - exact) ** 2)) / max(np.sqrt(np.mean(exact**2)), 1e-30))


def assert_close(name: str, exact: Any, plain: Any, found: Any, ratio: float = 2.0) -> None:
    """`found` strays from the float32 result `exact` at most `ratio` times as far as `plain`, its low-precision form.

    Where the plain path is exact, a float32 rounding is allowed.
    """
    allowed, strayed = max(error(exact, plain), 1e-6), error(exact, found)
    assert strayed <= ratio * allowed, f"{name}: {strayed / allowed:.2f} times the plain path's error {allowed:.2e}"

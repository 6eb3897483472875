"""Errors of written weights: the same numbers on every machine, since a later run compares them."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dgemma_convert.deviation import Deviation


@pytest.mark.parametrize("shape", [(1,), (3, 5), (700, 1500), (1 << 20,), (0, 4)])
def test_sums_do_not_depend_on_how_they_are_added(shape: tuple[int, ...]) -> None:
    """Float32 sums of a million squares differ by 1e-5 from one processor to the next."""
    generator = np.random.default_rng(0)
    values = (generator.normal(size=shape) * 10 ** generator.uniform(-4, 4, shape)).astype(np.float32)
    written = values.astype(np.float16).astype(np.float32)
    found = Deviation.between(values, written)
    squares = math.fsum(float(each) ** 2 for each in (written - values).ravel())
    power = math.fsum(float(each) ** 2 for each in values.ravel())
    assert math.isclose(found.squares, squares, rel_tol=1e-12) and math.isclose(found.power, power, rel_tol=1e-12)
    assert found.count == values.size

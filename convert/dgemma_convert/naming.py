"""Errors of numbers say whose numbers they are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from dgemma.errors import UnsupportedError


@contextmanager
def named(name: str) -> Iterator[None]:
    """Errors of a weight's numbers with its name; what overflows is found there, not in numpy's warnings."""
    try:
        with np.errstate(all="ignore"):
            yield
    except UnsupportedError as error:
        raise type(error)(f"{name}: {error}", error.remedy) from error

"""16-bit runs: no further from float32 than twice what transformers is in the same dtype."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma.backend import BackendOptions, EncodeJob, load_backend
from tests.parity.oracle import Floats, Oracle
from tests.parity.support import LIBRARY, canvas, denoise, prompt

LENGTHS = (10, 20, 30, 40)


@pytest.mark.parametrize("dtype", ("bfloat16", "float16"))
def test_the_error_is_that_of_the_dtype(dtype: str, name: str, tiny_folder: Path, oracle: Oracle) -> None:
    pytest.importorskip(LIBRARY.get(name, "torch"))
    exact = [_theirs(oracle, length) for length in LENGTHS]
    plain = Oracle(tiny_folder, getattr(torch, dtype))
    theirs = _error([_theirs(plain, length) for length in LENGTHS], exact)
    ours = _error(_ours(name, tiny_folder, dtype), exact)
    assert 0 < ours <= 2 * theirs, f"{ours / theirs:.2f} times the reference's error"


def _ours(name: str, folder: Path, dtype: str) -> list[Floats]:
    backend = load_backend(name, folder, BackendOptions(device="cpu", dtype=dtype))
    logits = []
    for length in LENGTHS:
        context = backend.open()
        backend.forward([EncodeJob(context, prompt(length))])
        logits.append(denoise(backend, context, canvas()))
    return logits


def _theirs(oracle: Oracle, length: int) -> Floats:
    context = oracle.open()
    context.encode(prompt(length))
    return context.denoise(canvas())[1]


def _error(logits: list[Floats], exact: list[Floats]) -> float:
    return float(np.mean([np.abs(a - b).mean() for a, b in zip(logits, exact, strict=True)]))

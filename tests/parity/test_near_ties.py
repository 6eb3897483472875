"""16-bit decoding of a model with near-ties: where verified leaves autoregressive decoding, one was counted."""

from __future__ import annotations

import importlib.util
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dgemma.autoregressive import Autoregressive
from dgemma.backend import Backend, BackendOptions, load_backend
from dgemma.drafting import FixedSteps
from dgemma.verified import Verified
from tests.parity import tiny
from tests.parity.conftest import Folders
from tests.parity.support import LIBRARY
from tests.parity.test_modes import answers, request
from tests.parity.tiny import Tensors

PROMPTS, TWINS = 6, 448


@pytest.fixture(scope="module")
def twins(folders: Folders, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Most of the vocabulary are pairs of ids with the same embedding: whichever wins, the other ties with it."""

    def pair(tensors: Tensors) -> None:
        weight = tensors["model.decoder.embed_tokens.weight"]
        weight[1:TWINS:2] = weight[0:TWINS:2]

    return tiny.edit(folders(tiny.Variant()), tmp_path_factory.mktemp("twins") / "model", pair)


def opened(name: str, folder: Path, dtype: Any) -> Backend:
    if importlib.util.find_spec(LIBRARY.get(name, "torch")) is None:
        pytest.skip(f"{LIBRARY[name]} is not installed")
    return load_backend(name, folder, BackendOptions(device="cpu", dtype=dtype))


def rounding_otherwise(backend: Backend, roundoff: float) -> Backend:
    """As on a device that sums in another order where a pass has many rows: each logit is one rounding off, or not."""
    inner: Any = backend
    kept = inner._model
    off = 1 - roundoff * np.random.default_rng(0).integers(0, 2, (tiny.VOCAB, 1)).astype(np.float32)

    def head(embedding: Any, x: Any, cap: float, draws: Any, causal: int, *rest: Any) -> Any:
        if causal > 1:
            weight = embedding.weight
            factor = torch.from_numpy(off).to(weight.dtype) if backend.name == "cuda" else _mlx(off, weight.dtype)
            embedding = replace(embedding, weight=weight * factor)
        return kept.kernels.head(embedding, x, cap, draws, causal, *rest)

    inner._model = replace(kept, kernels=replace(kept.kernels, head=head))
    return backend


def _mlx(values: np.ndarray, dtype: Any) -> Any:
    import mlx.core as mx

    return mx.array(values).astype(dtype)


def differing(left: list[int], right: list[int]) -> int | None:
    pairs = zip(left, right, strict=True)
    return next((place for place, (one, other) in enumerate(pairs) if one != other), None)


@pytest.mark.parametrize(("dtype", "roundoff"), [("bfloat16", 2.0**-8), ("float16", 2.0**-11)])
def test_a_near_tie_that_flips_is_counted(name: str, twins: Path, dtype: str, roundoff: float) -> None:
    backend = rounding_otherwise(opened(name, twins, dtype), roundoff)
    flips, counted = 0, 0
    for index in range(PROMPTS):
        [(plain, _, _)] = answers(backend, [request(index, mode=Autoregressive())])
        [(checked, _, stats)] = answers(backend, [request(index, mode=Verified(0.0, FixedSteps(1)))])
        place = differing(plain, checked)
        assert place is None or place in stats.near_ties
        flips += place is not None
        counted += len(stats.near_ties)
    assert flips > 0
    assert 0 < counted < PROMPTS * len(plain)


def test_float32_counts_none(name: str, twins: Path) -> None:
    backend = opened(name, twins, "float32")
    for index in range(PROMPTS):
        [(plain, _, _)] = answers(backend, [request(index, mode=Autoregressive())])
        [(checked, _, stats)] = answers(backend, [request(index, mode=Verified(0.0, FixedSteps(1)))])
        assert checked == plain and stats.near_ties == ()

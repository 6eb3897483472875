"""A second witness: mlx-vlm on the same folder agrees with transformers, and so with both backends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dgemma.backend import Backend
from tests.parity.oracle import Floats, Ids, Oracle
from tests.parity.support import FIRST_TEMPERATURE, TOLERANCE, canvas, denoise, encode, gap, prompt
from tests.parity.tiny import WINDOW

mx = pytest.importorskip("mlx.core")
witness = pytest.importorskip("mlx_vlm.models.diffusion_gemma")

LENGTHS = (WINDOW - 1, 3 * WINDOW)


@pytest.fixture(scope="module")
def model(tiny_folder: Path) -> object:
    config = witness.ModelConfig.from_dict(json.loads((tiny_folder / "config.json").read_text()))
    model = witness.Model(config)
    weights = model.sanitize(mx.load(str(tiny_folder / "model.safetensors")))
    model.load_weights(list(weights.items()), strict=True)
    return model


def _witness(model: object, tokens: Ids) -> tuple[Floats, Floats, Floats]:
    """Encoder states, logits of a first step, and logits of a step conditioned on it."""
    cache = model.make_cache()
    hidden, cache = model.model.encoder(mx.array(tokens)[None], cache=cache)
    first = model(canvas_ids=mx.array(canvas(1))[None], cache=cache).logits
    signal = first / FIRST_TEMPERATURE
    second = model(canvas_ids=mx.array(canvas(2))[None], cache=cache, self_conditioning_logits=signal).logits
    return tuple(np.array(each[0]) for each in (hidden, first, second))


@pytest.mark.parametrize("length", LENGTHS)
def test_the_witnesses_agree(model: object, oracle: Oracle, length: int) -> None:
    theirs = oracle.open()
    hidden = theirs.encode(prompt(length))
    first = theirs.denoise(canvas(1))[1]
    second = theirs.denoise(canvas(2), first / np.float32(FIRST_TEMPERATURE))[1]
    for left, right in zip(_witness(model, prompt(length)), (hidden, first, second), strict=True):
        assert gap(left, right) <= TOLERANCE


@pytest.mark.parametrize("length", LENGTHS)
def test_the_backend_agrees_with_the_witness(model: object, backend: Backend, length: int) -> None:
    context = backend.open()
    ours = (
        encode(backend, context, prompt(length)),
        denoise(backend, context, canvas(1)),
        denoise(backend, context, canvas(2)),
    )
    for left, right in zip(ours, _witness(model, prompt(length)), strict=True):
        assert gap(left, right) <= TOLERANCE

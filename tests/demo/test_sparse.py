"""Sparse self-conditioning on the trained demo model: its bound at every step of real runs, and the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dgemma
from tests.demo.conftest import held_out

LOSS = 2.0**-12


@pytest.mark.parametrize("backend", ["cuda", "mlx"])
@pytest.mark.parametrize("task", ["fill", "count"])
def test_bound_and_answers(models: Callable[[str], dgemma.Model], backend: str, task: str) -> None:
    examples = held_out(task, 8)
    prompts = [list(example.messages) for example in examples]
    settings: dict[str, Any] = {"seed": 0, "max_tokens": 64, "think": examples[0].enable_thinking}
    model = models(backend)
    exact = model.generate_batch(prompts, **settings)
    inner: Any = model.backend
    kept, strayed = inner._model, []

    def head(embedding: Any, x: Any, cap: float, draws: Any, first: int, dtype: Any, sparse: bool) -> Any:
        picks, soft = kept.kernels.head(embedding, x, cap, draws, first, dtype, True)
        full = kept.kernels.head(embedding, x, cap, draws, first, dtype, False)[1]
        if len(soft):
            strayed.append(float(np.abs(np.array(soft) - np.array(full)).max()))
        return picks, soft

    inner._model = replace(kept, kernels=replace(kept.kernels, head=head))
    try:
        sparse = model.generate_batch(prompts, **settings)
    finally:
        inner._model = kept
    largest = float(np.abs(np.array(kept.embed_tokens.weight)).max())
    assert len(strayed) == max(each.stats.denoising_steps for each in sparse) > 1
    assert max(strayed) <= LOSS * largest + 1e-5
    assert [each.text for each in sparse] == [each.text for each in exact]

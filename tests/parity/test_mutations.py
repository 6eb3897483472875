"""The parity comparison can fail: each easy mistake, made in the weights, is far outside the tolerance.

A mistake that can be written as a change of the checkpoint is loaded by the backend under test and compared with the
reference on the unchanged one, exactly as the parity tests compare.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from dgemma.backend import Backend
from tests.parity import tiny
from tests.parity.oracle import Oracle
from tests.parity.support import TOLERANCE, canvas, denoise, encode, gap, open_cpu, prompt
from tests.parity.tiny import Tensors

FAR = 100 * TOLERANCE
DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
Mistake = Callable[[Tensors], None]


def _each(ending: str, change: Callable[[torch.Tensor], torch.Tensor]) -> Mistake:
    """Apply `change` to every text tensor whose name ends in `ending`."""

    def mistake(tensors: Tensors) -> None:
        found = [path for path in tensors if path.startswith((DECODER, ENCODER)) and path.endswith(ending)]
        assert found
        for path in found:
            tensors[path] = change(tensors[path])

    return mistake


def _one_scalar(source: str, target: str) -> Mistake:
    """Use one role's layer_scalar for both."""

    def mistake(tensors: Tensors) -> None:
        for path in [path for path in tensors if path.startswith(source) and path.endswith("layer_scalar")]:
            tensors[target + path.removeprefix(source)] = tensors[path]

    return mistake


def _swap_halves(fused: torch.Tensor) -> torch.Tensor:
    first, second = fused.chunk(2, dim=1)
    return torch.cat([second, first], dim=1)


def _no_self_conditioning(tensors: Tensors) -> None:
    tensors[DECODER + "self_conditioning.down_proj.weight"].zero_()


MISTAKES: dict[str, Mistake] = {
    "encoder scalar for both roles": _one_scalar(ENCODER, DECODER),
    "decoder scalar for both roles": _one_scalar(DECODER, ENCODER),
    "no layer scalar": _each("layer_scalar", torch.ones_like),
    "no per_expert_scale": _each("per_expert_scale", torch.ones_like),
    "router H^-0.5 left out": _each("router.scale", lambda scale: scale * 64**0.5),
    "gate and up swapped in the experts": _each("experts.gate_up_proj", _swap_halves),
    "norms as 1 + w": _each("layernorm.weight", lambda weight: weight + 1),
    "attention scale 1/sqrt(d)": _each("q_norm.weight", lambda weight: weight * len(weight) ** -0.5),
    "no post_feedforward_layernorm_1": _each("post_feedforward_layernorm_1.weight", torch.ones_like),
    "no final norm weight": _each("decoder.norm.weight", torch.ones_like),
    "no self-conditioning": _no_self_conditioning,
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_far_outside_the_tolerance(
    mistake: str, name: str, oracle: Oracle, tiny_folder: Path, tmp_path: Path
) -> None:
    mutant = open_cpu(name, tiny.edit(tiny_folder, tmp_path / "mutant", MISTAKES[mistake]))
    assert _worst_difference(mutant, oracle) > FAR


def test_the_unchanged_model_is_within_it(backend: Backend, oracle: Oracle) -> None:
    assert _worst_difference(backend, oracle) <= TOLERANCE


def _worst_difference(backend: Backend, oracle: Oracle) -> float:
    """Over the encoder, the first step and a self-conditioned step."""
    ours, theirs = backend.open(), oracle.open()
    differences = [gap(encode(backend, ours, prompt(40)), theirs.encode(prompt(40)))]
    logits = theirs.denoise(canvas(1))[1]
    differences.append(gap(denoise(backend, ours, canvas(1)), logits))
    conditioned = theirs.denoise(canvas(2), logits / np.float32(0.8))[1]
    differences.append(gap(denoise(backend, ours, canvas(2)), conditioned))
    return max(differences)

"""What loads and gives the same numbers, and what is refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dgemma.backend import Backend
from dgemma.errors import CheckpointError
from tests.parity import tiny
from tests.parity.conftest import Folders
from tests.parity.oracle import Floats, Oracle
from tests.parity.support import TOLERANCE, canvas, denoise, gap, open_cpu, prepared, prompt
from tests.parity.tiny import Tensors, Variant

DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
SAME = TOLERANCE / 4  # equal weights at other addresses: float noise, no more
QUERY = "layers.1.self_attn.q_proj.weight"
SAME_WEIGHTS = {
    "resaved": Variant(resaved=True),
    "sharded": Variant(sharded=True),
    "text-only": Variant(text_only=True),
}


def _logits(backend: Backend) -> Floats:
    return denoise(backend, prepared(backend, prompt(30)), canvas())


@pytest.mark.parametrize("spelling", SAME_WEIGHTS)
def test_every_spelling_gives_the_same_numbers(spelling: str, backend: Backend, name: str, folders: Folders) -> None:
    assert gap(_logits(open_cpu(name, folders(SAME_WEIGHTS[spelling]))), _logits(backend)) <= SAME


@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16))
def test_16_bit_weights_run_in_float32(dtype: torch.dtype, name: str, folders: Folders) -> None:
    folder = folders(Variant(dtype=dtype))
    theirs = Oracle(folder).open()
    theirs.encode(prompt(30))
    assert gap(_logits(open_cpu(name, folder)), theirs.denoise(canvas())[1]) <= TOLERANCE


def _copy_encoder(tensors: Tensors) -> None:
    """Store what is tied twice: the encoder's stack and the head."""
    tied = [path for path in tensors if path.startswith(DECODER) and "self_conditioning" not in path]
    for path in tied:
        if not path.endswith("layer_scalar"):
            tensors[ENCODER + path.removeprefix(DECODER)] = tensors[path]
    tensors["lm_head.weight"] = tensors[DECODER + "embed_tokens.weight"]


def test_equal_duplicates_are_dropped(name: str, backend: Backend, tiny_folder: Path, tmp_path: Path) -> None:
    copy = tiny.edit(tiny_folder, tmp_path / "model", _copy_encoder)
    assert gap(_logits(open_cpu(name, copy)), _logits(backend)) <= SAME


@pytest.mark.parametrize("path", (ENCODER + QUERY, "lm_head.weight", ENCODER + "layers.0.experts.gate_up_proj"))
def test_unequal_duplicates_are_refused(path: str, name: str, tiny_folder: Path, tmp_path: Path) -> None:
    def change(tensors: Tensors) -> None:
        _copy_encoder(tensors)
        tensors[path] = tensors[path] + 1

    _assert_refused(name, tiny_folder, tmp_path, change, path)


@pytest.mark.parametrize(
    "path",
    (
        DECODER + QUERY,
        ENCODER + "layers.3.layer_scalar",
        DECODER + "layers.2.experts.down_proj",
        DECODER + "norm.weight",
    ),
)
def test_a_missing_tensor_is_named(path: str, name: str, tiny_folder: Path, tmp_path: Path) -> None:
    _assert_refused(name, tiny_folder, tmp_path, lambda tensors: tensors.pop(path), path)


@pytest.mark.parametrize(
    "path",
    (DECODER + "layers.2.self_attn.v_proj.weight", DECODER + "layers.6.layer_scalar", "model.decoder.extra.weight"),
)
def test_an_extra_tensor_is_named(path: str, name: str, tiny_folder: Path, tmp_path: Path) -> None:
    _assert_refused(name, tiny_folder, tmp_path, lambda tensors: tensors.update({path: torch.ones(1)}), path)


@pytest.mark.parametrize("path", (DECODER + QUERY, DECODER + "layers.0.experts.down_proj"))
def test_a_misshaped_tensor_is_named(path: str, name: str, tiny_folder: Path, tmp_path: Path) -> None:
    def transpose(tensors: Tensors) -> None:
        tensors[path] = tensors[path].transpose(-1, -2)

    _assert_refused(name, tiny_folder, tmp_path, transpose, path)


def _assert_refused(name: str, source: Path, target: Path, change: Callable[[Tensors], object], path: str) -> None:
    folder = tiny.edit(source, target / "model", change)
    with pytest.raises(CheckpointError, match=path.replace(".", r"\.")):
        open_cpu(name, folder)


def test_the_two_layer_scalars_stay_apart(tiny_folder: Path) -> None:
    """The fixture gives both roles scalars of their own, or the parity tests could not tell them apart."""
    tensors = tiny.read(tiny_folder)
    for layer in range(6):
        scalar = f"layers.{layer}.layer_scalar"
        assert abs(tensors[DECODER + scalar] - tensors[ENCODER + scalar]).item() > 1e-3

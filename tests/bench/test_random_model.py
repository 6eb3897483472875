"""Random models load strictly, are labelled, and have the entropies of a canvas half-way."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.random_model import PRESETS, write
from benchmarks.random_weights import FORMATS
from benchmarks.tensor_file import as_bfloat16
from dgemma.bench.identity import describe
from dgemma.bench.row import Row
from dgemma.bench.shape import parameters, release
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from tests.bench.conftest import Run


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_is_a_whole_checkpoint(tmp_path: Path, form: str) -> None:
    folder = write(tmp_path / form, PRESETS["tiny"], form)
    config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
    assert checkpoint.plan(config).skipped == ()
    found = describe(folder)
    assert found["random_weights"] and found["step_bytes"] > 0 and found["canvas_length"] == 32


def test_the_same_seed_writes_the_same_bytes(tmp_path: Path) -> None:
    first, second, other = (write(tmp_path / str(i), PRESETS["tiny"], "fp32", seed=i // 2) for i in range(3))
    data = [(folder / "model.safetensors").read_bytes() for folder in (first, second, other)]
    assert data[0] == data[1] != data[2]


def test_full_is_the_release(tmp_path: Path) -> None:
    from benchmarks.random_model import _config

    config = ModelConfig.from_dict(_config(PRESETS["full"]))
    assert parameters(config) == parameters(release())
    assert [layer.kind for layer in config.layers] == [layer.kind for layer in release().layers]


def test_bfloat16_rounds_to_nearest_even() -> None:
    values = np.array([1.0, 1.00390625, 1.01171875, -2.5], np.float32)
    assert as_bfloat16(values).tolist() == [0x3F80, 0x3F80, 0x3F82, 0xC020]


def test_entropies_of_a_first_step(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core")
    from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend

    folder = write(tmp_path / "model", PRESETS["tiny"])
    backend = load_backend("mlx", folder, BackendOptions(device="cpu", dtype="float32"))
    context = backend.open()
    ids = np.random.default_rng(0).integers(4, 1000, 40).astype(np.int32)
    backend.forward([EncodeJob(context, ids)])
    [prediction] = backend.forward([DenoiseJob(context, ids[:32], 0.6)])
    assert prediction is not None and 0.1 < float(prediction.entropy.mean()) < 3


@pytest.mark.parametrize(("engine", "steps"), [("dgemma:mlx", 2), ("dgemma:mlx,ar", None), ("dgemma:mlx,verified", 2)])
def test_our_modes_are_measured(bench: Run, tmp_path: Path, engine: str, steps: int | None) -> None:
    pytest.importorskip("mlx.core")
    folder = write(tmp_path / "model", PRESETS["tiny"])
    limits = ("--prompts", 1, "-n", 20, "--steps", 2, "--no-warm-up", "-r", 1, "--format", "jsonl", "-q")
    result = bench("run", "-m", folder, "--engine", engine, *limits)
    assert result.exit_code == 0, result.stderr
    row = Row.from_dict(json.loads(result.stdout))
    assert row.weights == "random" and row.e2e_tok_s is None and row.prefill_tok_s and row.ttfb_s
    assert (row.samples[0].steps_per_canvas == ()) == (steps is None)
    assert row.engine == "dgemma" if engine == "dgemma:mlx" else row.engine.startswith("dgemma ")

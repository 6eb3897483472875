"""What is settled once a model has weights: experts by timing, traced layers, float16 products."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

import dgemma
from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend
from tests.close import error

mx = pytest.importorskip("mlx.core")

from dgemma_mlx.half import HalfEmbedding, HalfExperts, emulates_bfloat16, guarded, halved  # noqa: E402
from dgemma_mlx.kernels import binding, trial  # noqa: E402
from dgemma_mlx.model import Model, halves  # noqa: E402
from dgemma_mlx.quant import (  # noqa: E402
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
)
from tests.mlx import metal  # noqa: E402
from tests.mlx.weights import SPECS, normal, pack  # noqa: E402

DEMO = Path(dgemma.__file__).parent / "demo"
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return metal.maker(tmp_path_factory.mktemp("kernels"))


@pytest.fixture
def backend() -> Any:
    return load_backend("mlx", DEMO, BackendOptions(device="cpu"))


def test_a_cpu_times_nothing_and_traces_nothing(backend: Any, tmp_path: Path) -> None:
    def clock() -> float:
        raise AssertionError("timed")

    path = tmp_path / "choices.json"
    assert binding.bound(backend._model, clock, path) is backend._model
    assert not path.exists()
    assert set(backend.kernels.values()) == {"mlx"}


@needs_compiler
@pytest.mark.parametrize(("laps", "name"), [((3, 1, 2), "metal, tiles of 8"), ((1, 2, 3), "mlx")])
def test_experts_are_those_that_the_clock_prefers(
    backend: Any, kernels: Any, tmp_path: Path, laps: tuple[int, int, int], name: str
) -> None:
    """Float32, so that whatever is chosen computes the same."""
    model = with_packed_experts(backend._model)
    before = steps(backend, model, 2)
    clock = iter([each for _ in range(5) for lap in laps for each in (0, lap)])
    with metal.in_place(kernels):
        chosen = binding.with_fastest_experts(model, lambda: float(next(clock)), tmp_path / "choices.json")
        assert chosen.kernels.names["moe"] == name
        assert np.abs(steps(backend, chosen, 2) - before).max() < 1e-3
    again = binding.with_fastest_experts(model, lambda: 1 / 0, tmp_path / "choices.json")
    assert again.kernels.names["moe"] == name


def test_plain_experts_leave_nothing_to_time(backend: Any, tmp_path: Path) -> None:
    chosen = binding.with_fastest_experts(backend._model, lambda: 1 / 0, tmp_path / "choices.json")
    assert chosen.kernels.names["moe"] == "mlx"


@needs_compiler
def test_a_whole_model_on_metal_kernels(backend: Any, kernels: Any) -> None:
    plain = steps(backend, backend._model, 2)
    with metal.in_place(kernels):
        chosen = trial.with_metal(backend._model.kernels)
        assert [part for part, how in chosen.names.items() if how == "metal"] == [
            "norm",
            "router",
            "vocab",
            "self_conditioning",
        ]
        assert np.abs(steps(backend, replace(backend._model, kernels=chosen), 2) - plain).max() < 1e-3


@needs_compiler
def test_layers_are_traced_once_however_long_the_cache(backend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three canvases of three steps; the caches are moved to larger buffers on the way."""
    traces: Counter[str] = Counter()

    def counting(*arguments: Any) -> Any:
        def counted(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
            def run(*inputs: Any) -> Any:
                traces[name] += 1
                return function(*inputs)

            return run

        return tuple(counted(name, each) for name, each in zip(("enter", "leave"), halves(*arguments), strict=True))

    plain = canvases(backend, 230)
    monkeypatch.setattr(binding, "halves", counting)
    backend._model = binding.with_traces(backend._model)
    found = canvases(backend, 230)
    assert traces == {"enter": len(backend._model.layers), "leave": len(backend._model.layers)}
    assert np.abs(found - plain).max() < 1e-3


@pytest.mark.parametrize(
    ("architecture", "emulated"),
    [
        ("applegpu_g13g", True),
        ("applegpu_g13d", True),
        ("applegpu_g14s", True),
        ("applegpu_g15g", False),
        ("applegpu_g16s", False),
        ("applegpu_g17s", False),
        ("x86_64", False),
        ("", False),
    ],
)
def test_chips_without_bfloat16(architecture: str, emulated: bool) -> None:
    assert emulates_bfloat16(architecture) is emulated


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e5, 1e9])
def test_a_guarded_row_is_in_range_and_loses_no_more_than_float16(size: float) -> None:
    x = normal((5, 64), 0) * size
    rows, scale = guarded(x, 3.0)
    assert rows.dtype == mx.float16
    assert float(mx.abs(rows).max()) <= 2.0**15
    assert error(np.array(x), np.array(rows.astype(mx.float32) * scale)) < 2.0**-11
    assert np.all(np.array(scale) >= 1)
    assert (float(scale.max()) > 1) == (size > 1e3)


@pytest.mark.parametrize("name", ["plain", *SPECS])
def test_products_that_overflow_float16_are_guarded(name: str) -> None:
    """Inputs beyond float16, and inputs within it whose products are not."""
    matrix = normal((40, 64), 1)
    plain = PlainLinear(matrix) if name == "plain" else PackedLinear(pack(matrix, SPECS[name], True))
    half = halved(plain, mx.bfloat16)
    for size in (1.0, 2e4, 1e6):
        x = normal((3, 64), 2) * size
        exact = plain(x)
        assert error(np.array(exact), np.array(half(x))) < 2.0**-9
        if size > 1 and name == "plain":
            assert not np.isfinite(np.array(half.inner(x.astype(mx.float16)))).all()


def test_products_of_experts_are_guarded() -> None:
    matrices = normal((3, 40, 64), 3)
    owners = mx.array([0, 0, 1, 2], mx.uint32)
    for plain in (PlainExperts(matrices, True), PackedExperts(pack(matrices, SPECS["affine4"], False))):
        half = halved(plain, mx.bfloat16)
        assert isinstance(half, HalfExperts)
        x = normal((4, 64), 4) * 1e5
        assert error(np.array(plain(x, owners)), np.array(half(x, owners))) < 2.0**-9


def test_small_shares_of_the_vocabulary_are_not_lost() -> None:
    table = normal((3000, 64), 5)
    shares = np.full((2, 3000), 3e-8, np.float32)
    shares[0, 7], shares[1, 9] = 0.3, 1
    packed = PackedEmbedding(pack(table, SPECS["mxfp8"], False), mx.float32)
    # MLX's product with a packed matrix sums in float16 on a CPU.
    for plain, limit in ((PlainEmbedding(table), 2.0**-8), (packed, 0.05)):
        half = halved(plain, mx.float32)
        assert isinstance(half, HalfEmbedding)
        rest = mx.array(np.where(shares < 0.1, shares, 0))
        exact = plain.mix(rest)
        assert error(np.array(exact), np.array(half.mix(rest))) < limit
        assert error(np.array(exact), np.array(half.inner.mix(rest.astype(mx.float16)).astype(mx.float32))) > 0.1
        x = normal((2, 64), 6) * 1e4
        assert error(np.array(plain.logits(x)), np.array(half.logits(x))) < 2.0**-9


def test_weights_that_float16_does_not_hold_stay() -> None:
    large = PlainLinear(mx.array([[1e5, 1.0]]).astype(mx.bfloat16))
    assert halved(large, mx.bfloat16) is large


def test_a_model_with_float16_products_is_about_as_accurate(backend: Any) -> None:
    """By the median row: a row whose router changes its mind says nothing about products."""
    exact, plain = backend, load_backend("mlx", DEMO, BackendOptions(device="cpu", dtype="bfloat16"))
    reference, low = (steps(each, each._model, 1) for each in (exact, plain))
    half = binding.with_half(plain._model)
    assert half.kernels.names["linear"] == "mlx float16"
    assert _row_error(reference, steps(plain, half, 1)) <= 1.5 * _row_error(reference, low)


def _row_error(exact: Any, found: Any) -> float:
    return float(np.median([error(a, b) for a, b in zip(exact, found, strict=True)]))


def steps(backend: Any, model: Model, count: int) -> Any:
    """Logits of the last of `count` denoising steps by `model` in the place of the backend's own."""
    with mock.patch.object(backend, "_model", model):
        context = backend.open()
        backend.forward([EncodeJob(context, ids(40, 0))])
        found = [backend.inspect(DenoiseJob(context, ids(32, 1), 0.8)).logits for _ in range(count)]
    return found[-1]


def canvases(backend: Any, prompt: int) -> Any:
    """Hidden states of every step of three canvases of three steps, each committed."""
    context, found = backend.open(), []
    backend.forward([EncodeJob(context, ids(prompt, 0))])
    for canvas in range(3):
        found += [backend.inspect(DenoiseJob(context, ids(32, step), 0.8)).hidden for step in range(3)]
        backend.forward([EncodeJob(context, ids(32, canvas))])
        context.settle()
        context.start_canvas()
    return np.array(found)


def with_packed_experts(model: Model) -> Model:
    def packed(experts: Any) -> PackedExperts:
        return PackedExperts(pack(experts.weight, SPECS["affine4"], False))

    def changed(moe: Any) -> Any:
        return replace(moe, gate_up_proj=packed(moe.gate_up_proj), down_proj=packed(moe.down_proj))

    return replace(model, layers=tuple(replace(each, moe=changed(each.moe)) for each in model.layers))


def ids(count: int, seed: int) -> Any:
    return np.random.default_rng(seed).integers(3, 120, count).astype(np.int32)


@pytest.fixture(autouse=True)
def on_the_cpu() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield

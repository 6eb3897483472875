"""Metal kernels of a layer, run as C++ on the CPU, against their twins: norms, router, experts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.close import assert_close

mx = pytest.importorskip("mlx.core")

from dgemma_mlx import moe as plain_moe  # noqa: E402
from dgemma_mlx import norm as plain_norm  # noqa: E402
from dgemma_mlx.kernels import fused, moe, naive, trial  # noqa: E402
from dgemma_mlx.moe import Router  # noqa: E402
from dgemma_mlx.quant import PackedExperts, PackedLinear, PlainLinear  # noqa: E402
from tests.mlx import metal  # noqa: E402
from tests.mlx.weights import SPECS, normal, pack  # noqa: E402

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
EPS = 1e-6


@pytest.fixture(scope="module", autouse=True)
def shim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with metal.in_place(metal.maker(tmp_path_factory.mktemp("kernels"))):
        yield


@pytest.mark.parametrize(("rows", "width"), [(3, 700), (1, 7)])
def test_norms(rows: int, width: int) -> None:
    """Rows longer than a threadgroup and shorter than a simdgroup; the residual is far larger than what is added."""
    x, weight = low(normal((rows, width), 0) * 3), normal((width,), 1)
    residual, scale = low(normal((rows, width), 2) * 50), low(normal((rows,), 3))
    for arguments in ((x, weight, EPS), (x, None, EPS)):
        found, plain = fused.rms_norm(*arguments), plain_norm.rms_norm(*arguments)
        close("rms_norm", naive.rms_norm(wide(x), *arguments[1:]), plain, found)
    for last in (None, scale):
        exact = naive.add_norm(wide(residual), wide(x), weight, EPS, None if last is None else wide(last))
        arguments = (residual, x, weight, EPS, last)
        close("add_norm", exact, plain_norm.add_norm(*arguments), fused.add_norm(*arguments))


@pytest.mark.parametrize(("rows", "heads", "width"), [(5, 5, 192), (1, 2, 32)])
def test_norm_and_rotation(rows: int, heads: int, width: int) -> None:
    x, weight, angles = low(normal((rows, heads, width), 4)), normal((width,), 5), normal((rows, 1, width // 2), 6) * 3
    turn = (mx.cos(angles), mx.sin(angles))
    exact = naive.norm_rotate(wide(x), weight, turn, EPS)
    arguments = (x, weight, tuple(low(each) for each in turn), EPS)
    close("norm_rotate", exact, plain_norm.norm_rotate(*arguments), fused.norm_rotate(*arguments))


@pytest.mark.parametrize(
    ("stored", "rows", "count", "width", "top_k"),
    [("plain", 11, 100, 72, 8), ("affine8", 8, 64, 128, 2), ("nvfp4", 1, 5, 96, 3)],
)
def test_router(stored: str, rows: int, count: int, width: int, top_k: int) -> None:
    matrix = normal((count, width), 7)
    proj = PlainLinear(matrix) if stored == "plain" else PackedLinear(pack(matrix, SPECS[stored], stored == "nvfp4"))
    router = Router(proj, normal((width,), 8) * 3, normal((count,), 9) + 2, top_k, EPS)
    x = normal((rows, width), 10)
    (exact_ids, exact), (ids, weights) = naive.route(router, x), fused.route(router, x)
    assert np.array_equal(np.array(ids), np.array(exact_ids))
    assert_close("router", exact, exact, weights, 2)


def test_router_breaks_ties_by_the_lowest_expert() -> None:
    router = Router(PlainLinear(mx.zeros((70, 64))), mx.ones(64), mx.ones(70), 4, EPS)
    ids, weights = fused.route(router, normal((3, 64), 0))
    assert np.array_equal(np.array(ids), np.tile(np.arange(4), (3, 1)))
    assert np.allclose(np.array(weights), 0.25)


@pytest.mark.parametrize("size", [8, 16])
@pytest.mark.parametrize("name", SPECS)
def test_experts(name: str, size: int) -> None:
    """More rows an expert than a tile, experts without rows, widths that are no multiple of a block."""
    ids = np.random.default_rng(11).integers(0, 4, (21, 2)) if size == 8 else np.tile([3, 1], (21, 1))
    experts(name, size, ids.astype(np.uint32), 5)


def test_experts_of_one_row() -> None:
    experts("affine4", 8, np.array([[2, 0, 1]], np.uint32), 3)


def experts(name: str, size: int, ids: Any, count: int) -> None:
    tokens, hidden, inner = len(ids), 64, 128 if name == "affine8" else 96
    x, routing = low(normal((tokens, hidden), 12)), mx.abs(normal(ids.shape, 13))
    scaled = name == "nvfp4"
    gate_up = PackedExperts(pack(normal((count, 2 * inner, hidden), 14) * 0.2, SPECS[name], scaled))
    down = PackedExperts(pack(normal((count, hidden, inner), 15) * 0.2, SPECS[name], scaled))
    arguments = (mx.array(ids), routing, gate_up, down)
    exact, plain = naive.experts(wide(x), *arguments), plain_moe.experts(x, *arguments)
    close(f"moe {name}, tiles of {size}", exact, plain, fused.experts(x, *arguments, size, range(tokens + 1)))


@pytest.mark.parametrize("size", [8, 16])
def test_every_row_stands_in_one_tile_of_its_expert(size: int) -> None:
    ids = np.random.default_rng(16).integers(0, 9, (50, 3)).astype(np.uint32)
    ids[ids == 4] = 5
    order, tiles, starts = (np.array(each) for each in moe.plan(mx.array(ids), 9, size))
    used = tiles[tiles[:, 0] >= 0]
    rows = [(row, expert) for expert, first in used for row in range(first, min(first + size, starts[expert + 1]))]
    assert sorted(row for row, _ in rows) == list(range(ids.size))
    assert all(ids.flat[order[row]] == expert for row, expert in rows)


def test_kernels_pass_their_trial_on_a_device_that_runs_them() -> None:
    assert [trial.refusal(each) for _, _, each in trial._TRIALS] == [None, None, None]


def test_a_kernel_that_does_not_compile_leaves_the_part_to_mlx() -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise RuntimeError("error: use of undeclared identifier\nmore")

    from dgemma_mlx.kernels import choose

    plain = choose(mx.Device(mx.cpu), "auto")
    with mock.patch.object(mx.fast, "metal_kernel", refuse):
        chosen = trial.with_metal(plain)
    assert chosen.route is plain.route
    assert chosen.names["norm"] == "mlx (Metal failed: RuntimeError: error: use of undeclared identifier)"


def test_a_kernel_that_computes_something_else_leaves_the_part_to_mlx() -> None:
    def wrong() -> Iterator[Any]:
        yield mx.ones(3), mx.array([1.0, 1.0, 1.1])
        yield mx.ones(3), mx.ones(3)

    assert trial.refusal(wrong) == "results differ by 1.0e-01"


def test_lanes_that_diverge_are_reported() -> None:
    kernel = mx.fast.metal_kernel("diverged", ["x"], ["out"], DIVERGED, "")
    with pytest.raises(AssertionError, match="diverged: its lanes diverge"):
        kernel(
            inputs=[mx.zeros(64)],
            template=[],
            grid=(64, 1, 1),
            threadgroup=(64, 1, 1),
            output_shapes=[(64,)],
            output_dtypes=[mx.float32],
        )


DIVERGED = """
    uint lane = thread_position_in_threadgroup.x;
    if (lane < 40) threadgroup_barrier(mem_flags::mem_threadgroup);
    out[lane] = x[lane];
"""


def close(name: str, exact: Any, plain: Any, found: Any) -> None:
    assert_close(name, exact, wide(plain), wide(found))


def low(x: Any) -> Any:
    return x.astype(mx.bfloat16)


def wide(x: Any) -> Any:
    return x.astype(mx.float32)

"""Experts of one canvas in every format, against mlx-vlm's sorted gather and against one expert after the other."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import on_gpu, show
from benchmarks.ops.mlx.sizes import experts, plain, sizes, stored_bytes
from benchmarks.ops.shapes import FORMATS
from dgemma_mlx.kernels import choose, naive
from dgemma_mlx.quant import Experts


def cases() -> Iterator[Case]:
    """Every expert is used: 2 * 3 products of all rows."""
    size = sizes()
    x = plain(size.rows, size.hidden) * size.hidden**0.5
    scores = mx.random.uniform(shape=(size.rows, size.experts))
    ids = mx.argpartition(-scores, size.top_k - 1, axis=-1)[:, : size.top_k]
    routing = mx.take_along_axis(scores, ids, axis=-1)
    kernels = choose(mx.default_device(), "auto")
    for name, spec in FORMATS.items():
        shapes = ((size.experts, 2 * size.inner, size.hidden), (size.experts, size.hidden, size.inner))
        pair = [experts(spec, *shape) for shape in shapes]
        variants = {
            "ours": lambda pair=pair: kernels.experts(x, ids, routing, *pair),
            "as mlx-vlm": lambda pair=pair: _mlx_vlm(x, ids, routing, *pair),
        }
        if not on_gpu():  # One product an expert, each behind a look at the ids: minutes at real shapes.
            variants["twin"] = lambda pair=pair: naive.experts(x, ids, routing, *pair)
        moved = sum(stored_bytes(spec, *shape) for shape in shapes)
        flops = 6.0 * size.rows * size.top_k * size.hidden * size.inner
        yield Case(f"moe {name}", variants, moved, flops)


def _mlx_vlm(x: mx.array, ids: mx.array, routing: mx.array, gate_up: Experts, down: Experts) -> mx.array:
    """Its order of operations: rows gathered by expert, products, scattered back, weighted in the rows' dtype."""
    from mlx_vlm.models.diffusion_gemma.language import geglu
    from mlx_vlm.models.switch_layers import _gather_sort, _scatter_unsort

    rows, owners, inverse = _gather_sort(mx.expand_dims(x, (-2, -3)), ids)
    gate, up = mx.split(gate_up(rows.squeeze(-2), owners), 2, axis=-1)
    parts = _scatter_unsort(down(geglu(gate, up), owners), inverse, ids.shape)
    return (parts * routing[..., None].astype(parts.dtype)).sum(axis=-2)


if __name__ == "__main__":
    show(cases)

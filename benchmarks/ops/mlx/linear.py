"""Linear maps of one canvas in every format: MLX's own products, as mlx-vlm's layers take them, and unpacked ones."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import dtype, show
from benchmarks.ops.mlx.sizes import linear, plain, sizes, stored_bytes
from benchmarks.ops.shapes import FORMATS
from dgemma_mlx.quant import PackedLinear


def cases() -> Iterator[Case]:
    """The dense MLP's first map."""
    size = sizes()
    x = plain(size.rows, size.hidden)
    shape = (2 * size.dense, size.hidden)
    for name, spec in FORMATS.items():
        matrix = linear(spec, *shape)
        variants = {"ours": lambda matrix=matrix: matrix(x)}
        if isinstance(matrix, PackedLinear):
            variants["unpack and multiply"] = lambda packed=matrix.packed: (
                x @ packed.dequantized(mx.arange(shape[0])).astype(dtype()).T
            )
        yield Case(f"linear {name}", variants, stored_bytes(spec, *shape), 2.0 * size.rows * shape[0] * shape[1])


if __name__ == "__main__":
    show(cases)

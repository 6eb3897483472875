"""Linear maps of one canvas in every format, against unpacking and torch's product."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, show
from benchmarks.ops.shapes import FORMATS
from benchmarks.ops.sizes import linear, plain, sizes, stored_bytes
from dgemma_cuda.kernels import fused_available


def cases() -> Iterator[Case]:
    """The dense MLP's first map."""
    size = sizes()
    x = plain(size.rows, size.hidden)
    shape = (2 * size.dense, size.hidden)
    for name, spec in FORMATS.items():
        matrix = linear(spec, *shape)
        variants = {"torch": lambda matrix=matrix: matrix(x)}
        if fused_available(device()):
            from dgemma_cuda.kernels import linear as fused
            from dgemma_cuda.kernels import operand

            weight = operand.of(matrix)
            variants["ours"] = lambda weight=weight, run=fused.linear: run(x, weight)
        yield Case(f"linear {name}", variants, stored_bytes(spec, *shape), 2.0 * size.rows * shape[0] * shape[1])


if __name__ == "__main__":
    show(cases)

"""Soft embeddings: gathered rows against mlx-vlm's softmax and full product, in every format of the embedding."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import dtype, show
from benchmarks.ops.mlx.sizes import embedding, sizes, stored_bytes
from benchmarks.ops.shapes import FORMATS
from dgemma_mlx.self_conditioning import sparse_mixture


def cases() -> Iterator[Case]:
    """Rows that hold their mass in about twenty ids."""
    size = sizes()
    signal = mx.random.normal((size.rows, size.vocab)) * 3
    signal[:, ::997] += 20
    for name, spec in FORMATS.items():
        table = embedding(spec, size.vocab, size.hidden)
        variants = {
            "ours sparse": lambda table=table: sparse_mixture(table, signal, dtype()),
            "as mlx-vlm": lambda table=table: table.mix(
                mx.softmax(signal.astype(dtype()), axis=-1, precise=True).astype(dtype())
            ),
        }
        moved = stored_bytes(spec, size.rows * 20, size.hidden) + size.rows * size.vocab * dtype().size
        yield Case(f"self-conditioning {name}", variants, moved, 40.0 * size.rows * size.hidden)


if __name__ == "__main__":
    show(cases)

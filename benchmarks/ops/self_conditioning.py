"""Soft embeddings: gathered rows against the full product, in every format of the embedding."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, dtype, show
from benchmarks.ops.shapes import FORMATS
from benchmarks.ops.sizes import embedding, sizes, stored_bytes
from dgemma_cuda.kernels import fused_available
from dgemma_cuda.self_conditioning import sparse_mixture


def cases() -> Iterator[Case]:
    """Rows that hold their mass in about twenty ids."""
    size = sizes()
    signal = torch.randn(size.rows, size.vocab, device=device()).mul_(3)
    signal[:, ::997] += 20
    for name, spec in FORMATS.items():
        table = embedding(spec, size.vocab, size.hidden)
        variants = {
            "torch sparse": lambda table=table: sparse_mixture(table, signal, dtype()),
            "torch exact": lambda table=table: table.mix(signal.softmax(-1).to(dtype())),
        }
        if fused_available(device()):
            variants = {"ours sparse": _fused(table, signal, size.hidden)} | variants
        moved = stored_bytes(spec, size.rows * 20, size.hidden) + size.rows * size.vocab * dtype().itemsize
        yield Case(f"self-conditioning {name}", variants, moved, 40.0 * size.rows * size.hidden)


def _fused(table: object, scores: torch.Tensor, width: int) -> object:
    from dgemma_cuda.kernels import operand, self_conditioning, vocab
    from dgemma_cuda.vocab import Draws

    rows = len(scores)
    draws = Draws(*(torch.full((rows,), value, device=device()) for value in (1.0, 0.5, False)))
    _, signal = vocab.pick(scores.to(dtype()), 1e4, draws, 0, torch.bfloat16)
    weight = operand.of(table)  # type: ignore[arg-type]
    assert weight is not None
    return lambda: self_conditioning.gather(self_conditioning.candidates(signal), weight, width, dtype())


if __name__ == "__main__":
    show(cases)

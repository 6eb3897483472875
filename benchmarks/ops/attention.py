"""A canvas over its cache, on sliding and on full layers, against torch's attention."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch

from benchmarks import step_weights
from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, dtype, show
from benchmarks.ops.sizes import sizes
from dgemma.backend import DenoiseJob
from dgemma.batch import lay_out
from dgemma.config import LayerShape, Rope
from dgemma_cuda.attention import attend, one_by_one
from dgemma_cuda.cache import Context
from dgemma_cuda.inputs import Form, Inputs, Ragged
from dgemma_cuda.kernels import choose, naive


def cases() -> Iterator[Case]:
    """Head size 256 with 8 heads of keys, 512 with 2; half of both in the small form."""
    size = sizes()
    kernels = choose(device(), "auto")
    for kind, head_dim, kv_heads in (
        ("sliding_attention", 256, size.heads // 2),
        ("full_attention", 512, max(size.heads // 8, 1)),
    ):
        keys = size.context + size.rows
        queries = torch.randn(size.heads, size.rows, head_dim, device=device(), dtype=dtype()) * head_dim**-0.5
        sequences = _canvas(LayerShape(kind, kv_heads, head_dim, Rope("default", 1e4)), size.context, size.rows)
        ways = {"ours": kernels.attend, "torch": one_by_one(attend), "twin": one_by_one(naive.attend)}
        variants = {
            name: lambda way=way, queries=queries, sequences=sequences: way(queries, sequences)
            for name, way in ways.items()
        }
        moved = 2.0 * kv_heads * keys * head_dim * dtype().itemsize
        yield Case(f"attention {head_dim}", variants, moved, 4.0 * size.heads * size.rows * keys * head_dim)


def _canvas(shape: LayerShape, length: int, rows: int) -> Ragged:
    """One canvas behind `length` random keys."""
    config = replace(step_weights.config(small=True), layers=(shape,))
    context = Context(config, device(), dtype())
    context.reserve(length + rows)
    context.length = length
    batch = lay_out([DenoiseJob(context, np.zeros(rows, np.int32), 1.0)])
    for buffer in context.buffers(0):
        buffer.normal_()
    inputs = Inputs(Form.of(batch), config, device(), dtype())
    inputs.fill(batch)
    return inputs.layer(0)


if __name__ == "__main__":
    show(cases)

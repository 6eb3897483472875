"""Sampling side: one pass over the logits against the way transformers does it."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.ops.case import Case
from benchmarks.ops.measure import device, show
from benchmarks.ops.sizes import embedding, plain, sizes
from dgemma_cuda.kernels import choose, naive
from dgemma_cuda.vocab import Draws


def cases() -> Iterator[Case]:
    """Head, statistics and exact self-conditioning of one canvas."""
    size = sizes()
    table, x = embedding(None, size.vocab, size.hidden), plain(size.rows, size.hidden) * size.hidden
    draws = Draws(*(torch.full((size.rows,), value, device=device()) for value in (0.6, 0.5, False)))
    signal = torch.bfloat16 if device().type == "cuda" else torch.float32
    kernels = choose(device(), "auto")
    weights = 2.0 * table.logits(x[:1]).element_size() * size.vocab * size.hidden
    variants = {
        "ours exact": lambda: kernels.head(table, x, 30.0, draws, 0, signal, False),
        "ours sparse": lambda: kernels.head(table, x, 30.0, draws, 0, signal, True),
        "twin": lambda: naive.head(table, x, 30.0, draws, 0, signal, False),
        "as transformers": lambda: _transformers(table.logits(x), table.mix),
    }
    yield Case("vocab head", variants, weights, 4.0 * size.rows * size.vocab * size.hidden)


def _transformers(raw: Tensor, mix: object) -> Tensor:
    capped = 30.0 * torch.tanh(raw.float() / 30.0) / 0.6
    torch.multinomial(torch.softmax(capped, -1), 1)
    capped.argmax(-1)
    torch.distributions.Categorical(logits=capped).entropy()
    return mix(torch.softmax(capped.to(raw.dtype), -1, dtype=torch.float32).to(raw.dtype))  # type: ignore[operator]


if __name__ == "__main__":
    show(cases)

"""Sampling side: our head against the functions that mlx-vlm's loop calls, in their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import mlx.core as mx

from benchmarks.ops.case import Case
from benchmarks.ops.mlx.measure import dtype, on_gpu, show
from benchmarks.ops.mlx.sizes import embedding, plain, sizes
from dgemma_mlx.kernels import choose, naive
from dgemma_mlx.quant import PlainEmbedding
from dgemma_mlx.vocab import Draws


def cases() -> Iterator[Case]:
    """Head, statistics and exact self-conditioning of one canvas."""
    size = sizes()
    table, x = embedding(None, size.vocab, size.hidden), plain(size.rows, size.hidden) * size.hidden
    draws = Draws(*(mx.full((size.rows,), value) for value in (0.6, 0.5)), mx.zeros((size.rows,), mx.bool_))
    signal = mx.bfloat16 if on_gpu() else mx.float32
    kernels = choose(mx.default_device(), "auto")
    variants: dict[str, Callable[[], object]] = {
        "ours exact": lambda: _flat(kernels.head(table, x, 30.0, draws, 0, signal, False)),
        "ours sparse": lambda: _flat(kernels.head(table, x, 30.0, draws, 0, signal, True)),
        "twin": lambda: _flat(naive.head(table, x, 30.0, draws, 0, signal, False)),
        "as mlx-vlm": lambda: _mlx_vlm(table, x),
    }
    moved = 2.0 * dtype().size * size.vocab * size.hidden
    yield Case("vocab head", variants, moved, 4.0 * size.rows * size.vocab * size.hidden)


def _flat(found: tuple[object, mx.array]) -> list[mx.array]:
    picks, soft = found
    return [picks.sampled, picks.argmax, picks.entropy, soft]  # type: ignore[attr-defined]


def _mlx_vlm(table: PlainEmbedding, x: mx.array) -> list[mx.array]:
    from mlx_vlm.generate import diffusion
    from mlx_vlm.models.diffusion_gemma.language import make_compiled_softcap

    logits = make_compiled_softcap(30.0)(x @ table.weight.T)[None] / 0.6
    argmax = mx.argmax(logits, axis=-1)
    sampled = diffusion._diffusion_sample_canvas(logits, mx.int32, 1.0)
    entropy = diffusion._diffusion_token_entropy(logits)
    shares = mx.softmax(logits.astype(table.weight.dtype), axis=-1, precise=True)
    return [argmax, sampled, entropy, shares.astype(table.weight.dtype) @ table.weight]


if __name__ == "__main__":
    show(cases)

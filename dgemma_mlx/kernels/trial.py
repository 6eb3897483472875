"""Metal kernels take the place of MLX operations only where they compile and agree with their twins on this device."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import mlx.core as mx
import numpy as np

from dgemma_mlx.kernels import Kernels, fused, naive
from dgemma_mlx.moe import Router
from dgemma_mlx.quant import PlainEmbedding, PlainLinear
from dgemma_mlx.vocab import Draws

_EPS = 1e-6
_CLOSE = 2e-2
_DTYPES = (mx.float32, mx.bfloat16)
Pair = tuple[mx.array, mx.array]


def with_metal(plain: Kernels) -> Kernels:
    """`plain` with every part replaced whose Metal kernels pass; the others keep theirs, and `names` says why."""
    chosen, names = plain, dict(plain.names)
    for parts, adopt, trial in _TRIALS:
        failure = refusal(trial)
        names |= dict.fromkeys(parts, "metal" if failure is None else f"mlx (Metal failed: {failure})")
        if failure is None:
            chosen = adopt(chosen)
    return replace(chosen, names=names)


def refusal(trial: Callable[[], Iterator[Pair]]) -> str | None:
    """Why kernels cannot be used: they do not compile or run, or differ from their twins; None where they can."""
    try:
        far = [distance(exact, found) for exact, found in trial()]
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:100]
    return None if all(each <= _CLOSE for each in far) else f"results differ by {max(far):.1e}"


def _norms() -> Iterator[Pair]:
    for kind in _DTYPES:
        x, residual, scale = (_normal(*shape).astype(kind) for shape in ((3, 300), (3, 300), (3,)))
        yield naive.rms_norm(x, None, _EPS), fused.rms_norm(x, None, _EPS)
        arguments = (residual, x, _normal(300), _EPS, scale)
        yield naive.add_norm(*arguments), fused.add_norm(*arguments)
        angles = _normal(3, 1, 32)
        turn = (mx.cos(angles).astype(kind), mx.sin(angles).astype(kind))
        heads = (_normal(3, 5, 64).astype(kind), _normal(64), turn, _EPS)
        yield naive.norm_rotate(*heads), fused.norm_rotate(*heads)


def _router() -> Iterator[Pair]:
    matrix, scale = _normal(128, 64), 24 * _normal(64)
    router = Router(PlainLinear(matrix), scale, _normal(128), 8, _EPS)
    yield from zip(naive.route(router, _normal(9, 64)), fused.route(router, _normal(9, 64)), strict=True)
    # Scores rounded to 16 bits may tie, and which of two such experts is taken is then open.
    low = Router(PlainLinear(matrix.astype(mx.bfloat16)), scale / 48, mx.ones(128), 8, _EPS)
    x = _normal(9, 64).astype(mx.bfloat16)
    yield naive.route(low, x)[1], fused.route(low, x)[1]


def _head() -> Iterator[Pair]:
    table, x = PlainEmbedding(_normal(5000, 64) * 0.2), _normal(5, 64)
    draws = Draws(mx.full((5,), 0.7), mx.array([0.1, 0.3, 0.5, 0.7, 0.9]), mx.array([False] * 5))
    for sparse in (False, True):
        arguments = (table, x, 30.0, draws, 1, mx.float32, sparse)
        (picks, soft), (found, mixed) = naive.head(*arguments), fused.head(*arguments)
        yield picks.argmax, found.argmax
        yield picks.sampled, found.sampled
        yield picks.entropy, found.entropy
        yield soft, mixed


def _with_norms(kernels: Kernels) -> Kernels:
    return replace(kernels, rms_norm=fused.rms_norm, add_norm=fused.add_norm, norm_rotate=fused.norm_rotate)


def _with_router(kernels: Kernels) -> Kernels:
    return replace(kernels, route=fused.route)


def _with_head(kernels: Kernels) -> Kernels:
    return replace(kernels, head=fused.head)


_TRIALS: tuple[tuple[tuple[str, ...], Callable[[Kernels], Kernels], Callable[[], Iterator[Pair]]], ...] = (
    (("norm",), _with_norms, _norms),
    (("router",), _with_router, _router),
    (("vocab", "self_conditioning"), _with_head, _head),
)


def _normal(*shape: int) -> mx.array:
    return mx.array(np.random.default_rng(shape[0]).normal(size=shape).astype(np.float32))


def distance(exact: mx.array, found: mx.array) -> float:
    """The largest difference relative to the largest value; infinite for unequal ids and what is not a number."""
    a, b = (np.array(each.astype(mx.float32)) for each in (exact, found))
    same = a.shape == b.shape and np.isfinite(b).all()
    if not same or (mx.issubdtype(exact.dtype, mx.integer) and not np.array_equal(a, b)):
        return float("inf")
    return float(np.abs(a - b).max() / max(np.abs(a).max(), 1e-30))

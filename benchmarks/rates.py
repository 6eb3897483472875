"""Copy bandwidth and matrix rate of an accelerator, through the library that drives it."""

from __future__ import annotations

from dgemma.bench.meters import Rates, best

_SIZE, _COPIED = 8192, 1 << 30


def torch() -> Rates:
    """An NVIDIA card in bfloat16."""
    import torch as library

    source = library.empty(_COPIED, dtype=library.uint8, device="cuda")
    target = library.empty_like(source)
    matrix = library.ones(_SIZE, _SIZE, dtype=library.bfloat16, device="cuda")

    def timed(call: object) -> float:
        def run() -> None:
            call()  # type: ignore[operator]
            library.cuda.synchronize()

        return best(run)

    copy, product = timed(lambda: target.copy_(source)), timed(lambda: matrix @ matrix)
    return Rates(2 * _COPIED / copy / 1e9, 2 * _SIZE**3 / product / 1e12)


def mlx() -> Rates:
    """An Apple GPU in bfloat16."""
    import mlx.core as mx

    source = mx.ones((_COPIED // 4,), mx.float32)
    matrix = mx.ones((_SIZE, _SIZE), mx.bfloat16)
    mx.eval(source, matrix)
    copy, product = best(lambda: mx.eval(source + 0)), best(lambda: mx.eval(matrix @ matrix))
    return Rates(2 * _COPIED / copy / 1e9, 2 * _SIZE**3 / product / 1e12)

"""MLX on this machine: device, dtype, clock, and the rates that times are set against."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache

import mlx.core as mx

from benchmarks.ops import case
from benchmarks.ops.case import Case, Meter, Variant


def on_gpu() -> bool:
    """Whether operations run on a GPU."""
    return bool(mx.default_device().type == mx.DeviceType.gpu)


def machine() -> str:
    """A name for rows."""
    return str(mx.device_info()["device_name"]) if on_gpu() else f"{platform.machine()} CPU"


def dtype() -> mx.Dtype:
    """bfloat16 on a GPU, float32 on a CPU."""
    return mx.bfloat16 if on_gpu() else mx.float32


def show(cases: Callable[[], Iterator[Case]]) -> None:
    """Print rows as JSON lines."""
    case.show(cases(), Meter("mlx", machine(), seconds, bandwidth(), matmul_rate()))


def seconds(call: Variant, repeats: int) -> float:
    """Median of `repeats` after two warm-up calls."""
    for _ in range(2):
        mx.eval(call())
    return statistics.median(_once(call) for _ in range(repeats))


@cache
def bandwidth() -> float:
    """Bytes a second of a copy, read and write counted."""
    source = mx.ones(2**28 if on_gpu() else 2**24)
    return 8 * source.size / seconds(lambda: source + 0, 5)


@cache
def matmul_rate() -> float:
    """FLOPs a second of a large square product in the working dtype."""
    size = 8192 if on_gpu() else 512
    matrix = mx.ones((size, size), dtype())
    return 2 * size**3 / seconds(lambda: matrix @ matrix, 5)


def _once(call: Variant) -> float:
    begin = time.perf_counter()
    mx.eval(call())
    return time.perf_counter() - begin

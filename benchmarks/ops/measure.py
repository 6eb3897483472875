"""PyTorch on this machine: device, dtype, clock, and the rates that times are set against."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Callable, Iterator
from functools import cache

import torch

from benchmarks.ops import case
from benchmarks.ops.case import Case, Meter, Variant


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> str:
    """A name for rows."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"


def show(cases: Callable[[], Iterator[Case]]) -> None:
    """Print rows as JSON lines."""
    with torch.inference_mode():
        case.show(cases(), Meter("torch", machine(), seconds, bandwidth(), matmul_rate()))


def seconds(call: Variant, repeats: int) -> float:
    """Median of `repeats` after two warm-up calls."""
    for _ in range(2):
        call()
    return statistics.median(_once(call) for _ in range(repeats))


@cache
def bandwidth() -> float:
    """Bytes a second of a copy, read and write counted."""
    source = torch.empty(2**28 if device().type == "cuda" else 2**24, device=device())
    target = torch.empty_like(source)
    return 8 * source.numel() / seconds(lambda: target.copy_(source), 5)


@cache
def matmul_rate() -> float:
    """FLOPs a second of a large square product in the working dtype."""
    size = 8192 if device().type == "cuda" else 512
    matrix = torch.randn(size, size, device=device(), dtype=dtype())
    return 2 * size**3 / seconds(lambda: matrix @ matrix, 5)


def dtype() -> torch.dtype:
    """bfloat16 on a GPU, float32 on a CPU."""
    return torch.bfloat16 if device().type == "cuda" else torch.float32


def _once(call: Variant) -> float:
    if device().type == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) / 1e3
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin

"""Time variants of one operation and set them against the copy bandwidth and matmul rate of this machine."""

from __future__ import annotations

import json
import platform
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

import torch

Variant = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """An operation at one shape: ways to compute it, and what the best of them must move and multiply."""

    name: str
    variants: Mapping[str, Variant]
    bytes: float
    flops: float


def device() -> torch.device:
    """The GPU where there is one."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def machine() -> str:
    """A name for rows."""
    return torch.cuda.get_device_name() if torch.cuda.is_available() else f"{platform.machine()} CPU"


def rows(cases: Iterator[Case], repeats: int = 10) -> Iterator[dict[str, object]]:
    """A row a variant, in the order given."""
    for case in cases:
        for name, call in case.variants.items():
            took = seconds(call, repeats)
            yield {
                "op": case.name,
                "variant": name,
                "machine": machine(),
                "ms": round(1e3 * took, 4),
                "gb": round(case.bytes / 1e9, 4),
                "gflop": round(case.flops / 1e9, 3),
                "of_bandwidth": round(case.bytes / took / bandwidth(), 3),
                "of_matmul_rate": round(case.flops / took / matmul_rate(), 3),
            }


def show(cases: Iterator[Case]) -> None:
    """Print rows as JSON lines."""
    with torch.inference_mode():
        for row in rows(cases):
            print(json.dumps(row), flush=True)


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

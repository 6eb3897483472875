"""Time variants of one operation and set them against the copy bandwidth and matmul rate of this machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

Variant = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """An operation at one shape: ways to compute it, and what the best of them must move and multiply."""

    name: str
    variants: Mapping[str, Variant]
    bytes: float
    flops: float


@dataclass(frozen=True, slots=True)
class Meter:
    """A library on this machine: seconds of a call (median of so many), bytes and FLOPs a second at best."""

    library: str
    machine: str
    seconds: Callable[[Variant, int], float]
    bandwidth: float
    matmul_rate: float


def rows(cases: Iterator[Case], meter: Meter, repeats: int = 10) -> Iterator[dict[str, object]]:
    """A row a variant, in the order given."""
    for case in cases:
        for name, call in case.variants.items():
            took = meter.seconds(call, repeats)
            yield {
                "op": case.name,
                "variant": name,
                "library": meter.library,
                "machine": meter.machine,
                "ms": round(1e3 * took, 4),
                "gb": round(case.bytes / 1e9, 4),
                "gflop": round(case.flops / 1e9, 3),
                "of_bandwidth": round(case.bytes / took / meter.bandwidth, 3),
                "of_matmul_rate": round(case.flops / took / meter.matmul_rate, 3),
            }


def show(cases: Iterator[Case], meter: Meter) -> None:
    """Print rows as JSON lines."""
    for row in rows(cases, meter):
        print(json.dumps(row), flush=True)

"""Run every operation benchmark of one library: `python -m benchmarks.ops.all [torch|mlx]`."""

from __future__ import annotations

import importlib
import sys

NAMES = ("vocab", "self_conditioning", "moe", "linear", "attention", "norm")


def main(library: str = "torch") -> None:
    """Print the rows of all operations."""
    package = "benchmarks.ops.mlx" if library == "mlx" else "benchmarks.ops"
    measure = importlib.import_module(f"{package}.measure")
    for name in NAMES:
        measure.show(importlib.import_module(f"{package}.{name}").cases)


if __name__ == "__main__":
    main(*sys.argv[1:])

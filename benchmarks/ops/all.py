"""Run every operation benchmark: `python -m benchmarks.ops.all`."""

from __future__ import annotations

from benchmarks.ops import attention, linear, moe, norm, self_conditioning, vocab
from benchmarks.ops.measure import show

if __name__ == "__main__":
    for module in (vocab, self_conditioning, moe, linear, attention, norm):
        show(module.cases())

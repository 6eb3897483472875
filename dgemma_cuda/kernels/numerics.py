"""What the kernels share: activations without a device library, and casts and products that the interpreter gets right.

Triton's interpreter truncates where a device rounds to bfloat16, and multiplies bfloat16 patterns as integers.
"""

from __future__ import annotations

import os
from typing import Any

import triton
import triton.language as tl

INTERPRETED: Any = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")


@triton.jit
def tanh(x: tl.tensor) -> tl.tensor:
    """tanh in float32, exact to about 1e-7 of its range."""
    return 2 * tl.sigmoid(2 * x) - 1


@triton.jit
def gelu(x: tl.tensor) -> tl.tensor:
    """GELU in its tanh form; float32."""
    return x * tl.sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))


@triton.jit
def to_bfloat16_grid(x: tl.tensor) -> tl.tensor:
    """The nearest bfloat16 value, ties to even, still as float32."""
    bits = x.to(tl.int32, bitcast=True)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & -65536).to(tl.float32, bitcast=True)


@triton.jit
def narrow(x: tl.tensor, dtype: tl.constexpr) -> tl.tensor:
    """float32 `x` as `dtype`, rounded to nearest."""
    if INTERPRETED and dtype == tl.bfloat16:
        x = to_bfloat16_grid(x)
    return x.to(dtype)


@triton.jit
def dot(a: tl.tensor, b: tl.tensor, acc: tl.tensor) -> tl.tensor:
    """acc + a @ b, accumulated in float32."""
    if INTERPRETED:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    return tl.dot(a, b, acc, input_precision="ieee")

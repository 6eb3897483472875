"""Fused row operations with their gradients, compiled from fused.c by the system's C compiler."""

import ctypes
import os
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

EPS = 1e-6
SOURCE = Path(__file__).with_name("fused.c")
FLAGS = ("-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-std=gnu11")


@cache
def library() -> ctypes.CDLL:
    """The compiled kernels."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "fused.so"
        subprocess.run([os.environ.get("CC", "cc"), *FLAGS, str(SOURCE), "-o", str(target), "-lm"], check=True)
        return ctypes.CDLL(str(target))


def _call(name: str, *arguments: Tensor | int | float) -> None:
    getattr(library(), name)(*(_argument(a) for a in arguments))


def _argument(value: Tensor | int | float) -> ctypes._SimpleCData:
    if isinstance(value, Tensor):
        return ctypes.c_void_p(value.data_ptr())
    return ctypes.c_float(value) if isinstance(value, float) else ctypes.c_long(value)


class _Rms(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor) -> Tensor:
        x = x.contiguous()
        y, scale = torch.empty_like(x), x.new_empty(x.numel() // x.shape[-1])
        _call("rms_forward", x, weight, y, scale, len(scale), x.shape[-1], EPS)
        ctx.save_for_backward(x, weight, scale)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        _call("rms_backward", grad.contiguous(), x, weight, scale, dx, dw, len(scale), x.shape[-1])
        return dx, dw


class _Head(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        heads, size = x.shape[-2:]
        x, cos, sin = x.contiguous(), cos.contiguous(), sin.contiguous()
        tokens = x.numel() // (heads * size)
        period = cos.numel() // (size // 2)
        y, scale = torch.empty_like(x), x.new_empty(tokens * heads)
        _call("head_forward", x, heads * size, weight, cos, sin, period, y, scale, tokens, heads, size, EPS)
        ctx.save_for_backward(x, weight, cos, sin, scale)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight, cos, sin, scale = ctx.saved_tensors
        heads, size = x.shape[-2:]
        dx, dw = torch.empty_like(x), torch.zeros_like(weight)
        period = cos.numel() // (size // 2)
        tables = (cos, sin, period)
        _call(
            "head_backward",
            grad.contiguous(),
            x,
            heads * size,
            weight,
            *tables,
            scale,
            dx,
            dw,
            len(scale) // heads,
            heads,
            size,
        )
        return dx, dw, None, None


class _Geglu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: FunctionCtx, wide: Tensor) -> Tensor:
        wide = wide.contiguous()
        size = wide.shape[-1] // 2
        y = wide.new_empty(*wide.shape[:-1], size)
        _call("geglu_forward", wide, y, wide.numel() // (2 * size), size)
        ctx.save_for_backward(wide)
        return y

    @staticmethod
    def backward(ctx: FunctionCtx, grad: Tensor) -> Tensor:
        (wide,) = ctx.saved_tensors
        size = wide.shape[-1] // 2
        dx = torch.empty_like(wide)
        _call("geglu_backward", grad.contiguous(), wide, dx, wide.numel() // (2 * size), size)
        return dx


def rms(x: Tensor, weight: Tensor | None = None) -> Tensor:
    """x divided by its root mean square over the last axis, times the weight."""
    return _Rms.apply(x, x.new_ones(x.shape[-1]) if weight is None else weight)


def head(x: Tensor, weight: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """The norm of every head of x [batch, time, heads, size], then its rotary rotation."""
    return _Head.apply(x, weight, cos, sin)


def geglu(wide: Tensor) -> Tensor:
    """gelu_tanh(first half) times second half."""
    return _Geglu.apply(wide)

"""Stands in for `mx.fast.metal_kernel` on machines without Metal: compiles the body as C++ and runs it on the CPU."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import mlx.core as mx
import numpy as np

_SHIM = Path(__file__).with_name("metal_shim.hpp")
_TYPES = {
    mx.float32: "float",
    mx.bfloat16: "bfloat16_t",
    mx.float16: "half",
    mx.int32: "int",
    mx.uint32: "uint",
    mx.uint8: "uint8_t",
    mx.bool_: "bool",
}


def maker(folder: Path) -> Callable[..., Any]:
    """A replacement for `metal_kernel` that keeps its libraries in `folder`."""

    def metal_kernel(name: str, inputs: list[str], outputs: list[str], source: str, header: str) -> Callable[..., Any]:
        def call(
            inputs: Sequence[mx.array],
            template: Sequence[tuple[str, Any]],
            grid: tuple[int, int, int],
            threadgroup: tuple[int, int, int],
            output_shapes: Sequence[tuple[int, ...]],
            output_dtypes: Sequence[mx.Dtype],
            names: tuple[list[str], list[str]] = (inputs, outputs),
        ) -> list[mx.array]:
            text = _program(names, [each.dtype for each in inputs], output_dtypes, template, source, header)
            given = [_host(each) for each in inputs]
            made = [_poisoned(shape, kind) for shape, kind in zip(output_shapes, output_dtypes, strict=True)]
            pointers = (ctypes.c_void_p * (len(given) + len(made)))(*(each.ctypes.data for each in [*given, *made]))
            groups = (grid[0] // threadgroup[0], grid[1] // threadgroup[1])
            assert _library(folder, name, text).run(pointers, *groups, threadgroup[0]), f"{name}: its lanes diverge"
            return [_device(each, kind) for each, kind in zip(made, output_dtypes, strict=True)]

        return call

    return metal_kernel


@contextmanager
def in_place(kernels: Callable[..., Any]) -> Iterator[None]:
    """Metal kernels are made by `kernels`, and everything runs on the CPU."""
    with mx.stream(mx.cpu), mock.patch.object(mx.fast, "metal_kernel", kernels):
        yield


def _program(
    names: tuple[list[str], list[str]],
    given: Sequence[mx.Dtype],
    made: Sequence[mx.Dtype],
    template: Sequence[tuple[str, Any]],
    source: str,
    header: str,
) -> str:
    constants = [
        f"using {name} = {_TYPES[value]};" if isinstance(value, mx.Dtype) else f"constexpr int {name} = {int(value)};"
        for name, value in template
    ]
    pointers = [f"static const {_TYPES[kind]}* {name};" for name, kind in zip(names[0], given, strict=True)]
    pointers += [f"static {_TYPES[kind]}* {name};" for name, kind in zip(names[1], made, strict=True)]
    every = [*names[0], *names[1]]
    binding = [f"    {name} = ({_cast(index, names, given, made)})p[{index}];" for index, name in enumerate(every)]
    body = f"static void body() {{{source}}}"
    start = 'extern "C" int run(void** p, uint groups_x, uint groups_y, uint threads) {'
    return "\n".join(
        [
            f'#include "{_SHIM}"',
            header.replace("#include <metal_simdgroup_matrix>", ""),
            *constants,
            *pointers,
            body,
            start,
            *binding,
            "    return run_grid(body, groups_x, groups_y, threads);",
            "}",
        ]
    )


def _cast(index: int, names: tuple[list[str], list[str]], given: Sequence[mx.Dtype], made: Sequence[mx.Dtype]) -> str:
    count = len(names[0])
    return f"const {_TYPES[given[index]]}*" if index < count else f"{_TYPES[made[index - count]]}*"


def _library(folder: Path, name: str, text: str) -> ctypes.CDLL:
    stem = folder / f"{name}-{hashlib.sha1(text.encode()).hexdigest()[:12]}"
    library = stem.with_suffix(".so")
    if not library.exists():
        stem.with_suffix(".cpp").write_text(text)
        command = [
            "g++",
            "-std=c++20",
            "-O1",
            "-w",
            "-shared",
            "-fPIC",
            str(stem.with_suffix(".cpp")),
            "-o",
            str(library),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{name}: {done.stderr[:3000]}"
    return ctypes.CDLL(str(library))


def _host(array: mx.array) -> np.ndarray:
    view = array.view(mx.uint16) if array.dtype == mx.bfloat16 else array
    return np.ascontiguousarray(np.array(view))


def _poisoned(shape: tuple[int, ...], kind: mx.Dtype) -> np.ndarray:
    if kind in (mx.float32, mx.float16):
        return np.full(shape, np.nan, np.float32 if kind == mx.float32 else np.float16)
    return np.full(shape, 0x7FC0, np.uint16) if kind == mx.bfloat16 else np.full(shape, -7, np.int32)


def _device(array: np.ndarray, kind: mx.Dtype) -> mx.array:
    return mx.array(array).view(kind) if kind in (mx.bfloat16, mx.uint32) else mx.array(array)

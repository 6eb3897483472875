"""Puts the linear kernel in the place of every packed map of a model."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

from torch import Tensor

from dgemma.config import ModelConfig
from dgemma_cuda.kernels import Kernels
from dgemma_cuda.kernels.linear import linear
from dgemma_cuda.kernels.operand import Operand, of
from dgemma_cuda.quant import PackedLinear

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FusedLinear:
    """A packed map whose kernel unpacks in registers."""

    weight: Operand

    def __call__(self, x: Tensor) -> Tensor:
        """x [..., in] -> [..., out]."""
        return linear(x, self.weight)


def bound(model: T) -> T:
    """`model` with its packed linear maps replaced, where the kernel reads their format."""
    return _bound(model)  # type: ignore[no-any-return]


def _bound(value: Any) -> Any:
    if isinstance(value, PackedLinear):
        weight = of(value)
        return value if weight is None else FusedLinear(weight)
    if isinstance(value, tuple):
        return tuple(_bound(each) for each in value)
    if not is_dataclass(value) or isinstance(value, type | ModelConfig | Kernels):
        return value
    changed = {each.name: _bound(getattr(value, each.name)) for each in fields(value)}
    return replace(value, **changed)

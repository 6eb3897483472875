"""Settles what needs the weights of a model: float16 products, how the experts are computed, traced layers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np

from dgemma import __version__
from dgemma.config import ModelConfig
from dgemma.fastest import Question, fastest
from dgemma_mlx.half import emulates_bfloat16, halved
from dgemma_mlx.kernels import Kernels, fused, fused_available, operand
from dgemma_mlx.kernels.trial import distance
from dgemma_mlx.model import Model, halves
from dgemma_mlx.quant import (
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
)

SIZES = (8, 16)
_CLOSE = 0.02
_MATRICES = (PackedEmbedding, PackedExperts, PackedLinear, PlainEmbedding, PlainExperts, PlainLinear)


def bound(model: Model, clock: Callable[[], float] = time.perf_counter, path: Path | None = None) -> Model:
    """`model` with everything that its device makes worth while; on a CPU, as it is."""
    if not fused_available(model.device):
        return model
    if model.dtype == mx.bfloat16 and emulates_bfloat16(str(mx.device_info().get("architecture", ""))):
        model = with_half(model)
    return with_traces(with_fastest_experts(model, clock, path))


def with_half(model: Model) -> Model:
    """`model` with the inputs of its products in float16."""
    half: Model = _replaced(model, model.dtype)
    return _named(half, linear="mlx float16")


def with_traces(model: Model) -> Model:
    """`model` whose layers run compiled in canvas passes: traced once a number of rows, whatever the caches hold."""
    made = [halves(layer, model.config.rms_norm_eps, model.kernels) for layer in model.layers]
    traced = tuple((mx.compile(enter), mx.compile(leave)) for enter, leave in made)
    return replace(_named(model, graph="mlx compiled"), traced=traced)


def with_fastest_experts(model: Model, clock: Callable[[], float], path: Path | None) -> Model:
    """`model` with the experts that are the fastest for one canvas, as timed on its first layer."""
    layer, length = model.layers[0].moe, model.config.canvas_length
    gate_up, down = operand.of(layer.gate_up_proj), operand.of(layer.down_proj)
    ways: dict[str, Callable[..., mx.array]] = {"mlx": model.kernels.experts}
    if gate_up is not None and down is not None and gate_up.packed and down.packed:
        tokens = range(length // 2 + 1, length + 1)
        ways |= {f"metal, tiles of {size}": partial(fused.experts, size=size, tokens=tokens) for size in SIZES}
        work = f"experts, {layer.router.top_k} of {gate_up.name}, then {down.name}, {length} rows {model.dtype}"
    else:
        work = "experts"
    arguments = (*_sample(model), layer.gate_up_proj, layer.down_proj)
    question = Question(work, str(mx.device_info()["device_name"]), f"mlx {version('mlx')}", __version__)
    runs = {name: partial(_run, way, arguments) for name, way in ways.items()}
    choice = fastest(question, runs, lambda exact, found: distance(exact, found) < _CLOSE, clock, path)
    model = replace(model, kernels=replace(model.kernels, experts=ways[choice.name]))
    return _named(model, moe=choice.name)


def _run(way: Callable[..., mx.array], arguments: tuple[Any, ...]) -> mx.array:
    out = way(*arguments)
    mx.eval(out)
    return out


def _sample(model: Model) -> tuple[mx.array, mx.array, mx.array]:
    """Rows of a canvas, expert ids and weights; some experts are more popular than others, as they are in practice."""
    draw = np.random.default_rng(0)
    rows, top_k = model.config.canvas_length, model.config.top_k_experts
    popularity = draw.normal(size=model.config.num_experts)
    order = np.argsort(-(popularity + draw.gumbel(size=(rows, model.config.num_experts))), axis=-1)
    x = mx.array(draw.normal(size=(rows, model.config.hidden_size)).astype(np.float32)).astype(model.dtype)
    return x, mx.array(order[:, :top_k].astype(np.uint32)), mx.full((rows, top_k), 1 / top_k)


def _named(model: Model, **names: str) -> Model:
    return replace(model, kernels=replace(model.kernels, names={**model.kernels.names, **names}))


def _replaced(value: Any, dtype: mx.Dtype) -> Any:
    if isinstance(value, _MATRICES):
        return halved(value, dtype)
    if isinstance(value, tuple):
        return tuple(_replaced(each, dtype) for each in value)
    if not is_dataclass(value) or isinstance(value, type | ModelConfig | Kernels):
        return value
    changed = {each.name: _replaced(getattr(value, each.name), dtype) for each in fields(value)}
    return replace(value, **changed)

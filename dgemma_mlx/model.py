"""The text model: one stack of layers that serves the causal encoder and the canvas decoder row by row.

A row's role decides its input, its mask and its `layer_scalar`; every weight is shared.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from dgemma.batch import Batch
from dgemma.config import ModelConfig
from dgemma_mlx.attention import Attention, attention, project, rotations
from dgemma_mlx.cache import Context
from dgemma_mlx.kernels import Kernels
from dgemma_mlx.moe import MoE, geglu, moe
from dgemma_mlx.quant import Embedding, Linear


@dataclass(frozen=True, slots=True)
class MLP:
    """A gated MLP; `gate_up_proj` holds gate rows, then up rows."""

    gate_up_proj: Linear
    down_proj: Linear

    def __call__(self, x: mx.array) -> mx.array:
        """x [N, H] -> [N, H]."""
        return self.down_proj(geglu(self.gate_up_proj(x)))


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; norms are float32 [H], `layer_scalar` [2] is the encoder's, then the decoder's."""

    self_attn: Attention
    mlp: MLP
    moe: MoE
    input_layernorm: mx.array
    post_attention_layernorm: mx.array
    pre_feedforward_layernorm: mx.array
    post_feedforward_layernorm: mx.array
    post_feedforward_layernorm_1: mx.array
    post_feedforward_layernorm_2: mx.array
    pre_feedforward_layernorm_2: mx.array
    layer_scalar: mx.array


@dataclass(frozen=True, slots=True)
class SelfConditioning:
    """The gated MLP that turns the soft embedding of the previous step into an addition to the canvas."""

    pre_norm: mx.array
    mlp: MLP


Halves = tuple[Callable[..., tuple[mx.array, mx.array, mx.array]], Callable[..., mx.array]]


@dataclass(frozen=True, slots=True)
class Model:
    """All text weights; `embed_scale` is sqrt(H) rounded to the weight dtype.

    `traced` holds what `halves` makes of each layer as compiled functions, or nothing.
    """

    config: ModelConfig
    embed_tokens: Embedding
    embed_scale: float
    self_conditioning: SelfConditioning
    layers: tuple[Layer, ...]
    norm: mx.array
    dtype: mx.Dtype
    device: mx.Device
    kernels: Kernels
    traced: tuple[Halves, ...] = ()


def hidden_states(model: Model, batch: Batch) -> mx.array:
    """The final-normed states [N, H] of all rows; keys and values are written, lengths are left alone."""
    x = _embed(model, batch)
    roles = (mx.arange(len(x)) >= batch.causal).astype(mx.int32)
    positions = mx.array(batch.positions)
    shapes = {layer.self_attn.shape.kind: layer.self_attn.shape for layer in model.layers}
    turns = {kind: rotations(shape, positions, model.dtype) for kind, shape in shapes.items()}
    eps, kernels = model.config.rms_norm_eps, model.kernels
    for index, layer in enumerate(model.layers):
        enter, leave = model.traced[index] if model.traced and not batch.causal else halves(layer, eps, kernels)
        attended = attention(index, *enter(x, *turns[layer.self_attn.shape.kind]), batch.segments, kernels)
        x = leave(x, attended, roles)
    return kernels.rms_norm(x, model.norm, eps)


def halves(layer: Layer, eps: float, kernels: Kernels) -> Halves:
    """What a layer computes before and behind attention: functions of rows alone, whatever a cache holds."""

    def enter(x: mx.array, cosines: mx.array, sines: mx.array) -> tuple[mx.array, mx.array, mx.array]:
        h = kernels.rms_norm(x, layer.input_layernorm, eps)
        return project(layer.self_attn, h, (cosines, sines), kernels)

    def leave(x: mx.array, attended: mx.array, roles: mx.array) -> mx.array:
        h = layer.self_attn.o_proj(attended)
        x = kernels.add_norm(x, h, layer.post_attention_layernorm, eps)
        return _feed_forward(layer, x, layer.layer_scalar[roles], eps, kernels)

    return enter, leave


def _feed_forward(layer: Layer, x: mx.array, scale: mx.array, eps: float, kernels: Kernels) -> mx.array:
    norm = kernels.rms_norm
    dense = norm(layer.mlp(norm(x, layer.pre_feedforward_layernorm, eps)), layer.post_feedforward_layernorm_1, eps)
    sparse = moe(layer.moe, x, norm(x, layer.pre_feedforward_layernorm_2, eps), kernels)
    sparse = norm(sparse, layer.post_feedforward_layernorm_2, eps)
    return kernels.add_norm(x, dense + sparse, layer.post_feedforward_layernorm, eps, scale)


def _embed(model: Model, batch: Batch) -> mx.array:
    tokens = mx.array(batch.tokens)
    x = model.embed_tokens.rows(tokens) * model.embed_scale
    if batch.canvas_rows == 0:
        return x
    canvas = x[batch.causal :]
    if any(_signal(segment.context) is not None for segment in batch.canvases):
        canvas = canvas + _self_condition(model, batch)
    return mx.concatenate([x[: batch.causal], model.kernels.rms_norm(canvas, None, model.config.rms_norm_eps)])


def _self_condition(model: Model, batch: Batch) -> mx.array:
    soft = mx.zeros((batch.canvas_rows, model.config.hidden_size), model.dtype)
    for segment in batch.canvases:
        if (signal := _signal(segment.context)) is not None:
            first = segment.start - batch.causal
            soft[first : first + segment.rows] = signal
    normed = model.kernels.rms_norm(soft, model.self_conditioning.pre_norm, model.config.rms_norm_eps)
    return model.self_conditioning.mlp(normed)


def _signal(context: object) -> mx.array | None:
    assert isinstance(context, Context)
    return context.signal

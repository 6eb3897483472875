"""The text model: one stack of layers that serves the causal encoder and the canvas decoder row by row.

A row's role decides its input, its mask and its `layer_scalar`; every weight is shared.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dgemma.config import ModelConfig
from dgemma_cuda.attention import Attention, attention, rotations
from dgemma_cuda.inputs import Inputs
from dgemma_cuda.kernels import Kernels
from dgemma_cuda.moe import MoE, geglu, moe
from dgemma_cuda.quant import Embedding, Linear


@dataclass(frozen=True, slots=True)
class MLP:
    """A gated MLP; `gate_up_proj` holds gate rows, then up rows."""

    gate_up_proj: Linear
    down_proj: Linear

    def __call__(self, x: Tensor) -> Tensor:
        """x [N, H] -> [N, H]."""
        return self.down_proj(geglu(self.gate_up_proj(x)))


@dataclass(frozen=True, slots=True)
class Layer:
    """One decoder layer; norms are float32 [H], `layer_scalar` [2] is the encoder's, then the decoder's."""

    self_attn: Attention
    mlp: MLP
    moe: MoE
    input_layernorm: Tensor
    post_attention_layernorm: Tensor
    pre_feedforward_layernorm: Tensor
    post_feedforward_layernorm: Tensor
    post_feedforward_layernorm_1: Tensor
    post_feedforward_layernorm_2: Tensor
    pre_feedforward_layernorm_2: Tensor
    layer_scalar: Tensor


@dataclass(frozen=True, slots=True)
class SelfConditioning:
    """The gated MLP that turns the soft embedding of the previous step into an addition to the canvas."""

    pre_norm: Tensor
    mlp: MLP


@dataclass(frozen=True, slots=True)
class Model:
    """All text weights on one device; `embed_scale` is sqrt(H) rounded to the weight dtype."""

    config: ModelConfig
    embed_tokens: Embedding
    embed_scale: float
    self_conditioning: SelfConditioning
    layers: tuple[Layer, ...]
    norm: Tensor
    dtype: torch.dtype
    device: torch.device
    kernels: Kernels


def hidden_states(model: Model, inputs: Inputs) -> Tensor:
    """The final-normed states [N, H] of all rows; keys and values are written, lengths are left alone."""
    x = _embed(model, inputs)
    roles = torch.zeros(len(x), dtype=torch.long, device=model.device)
    roles[inputs.form.causal :].fill_(1)
    shapes = {layer.self_attn.shape.kind: layer.self_attn.shape for layer in model.layers}
    turns = {kind: rotations(shape, inputs.positions, model.dtype) for kind, shape in shapes.items()}
    eps, kernels = model.config.rms_norm_eps, model.kernels
    for index, layer in enumerate(model.layers):
        rotation = turns[layer.self_attn.shape.kind]
        h = kernels.rms_norm(x, layer.input_layernorm, eps)
        h = attention(layer.self_attn, h, rotation, inputs.layer(index), kernels)
        x = _feed_forward(layer, kernels.add_norm(x, h, layer.post_attention_layernorm, eps), eps, kernels)
        x = x * layer.layer_scalar[roles, None]
    return kernels.rms_norm(x, model.norm, eps)


def _feed_forward(layer: Layer, x: Tensor, eps: float, kernels: Kernels) -> Tensor:
    norm = kernels.rms_norm
    dense = norm(layer.mlp(norm(x, layer.pre_feedforward_layernorm, eps)), layer.post_feedforward_layernorm_1, eps)
    sparse = moe(layer.moe, x, norm(x, layer.pre_feedforward_layernorm_2, eps), kernels)
    sparse = norm(sparse, layer.post_feedforward_layernorm_2, eps)
    return kernels.add_norm(x, dense + sparse, layer.post_feedforward_layernorm, eps)


def _embed(model: Model, inputs: Inputs) -> Tensor:
    x = model.embed_tokens.rows(inputs.tokens) * model.embed_scale
    causal, eps = inputs.form.causal, model.config.rms_norm_eps
    if causal == len(x):
        return x
    canvas = x[causal:]
    if inputs.form.conditioned:
        canvas = canvas + _self_condition(model, inputs.signal)
    return torch.cat([x[:causal], model.kernels.rms_norm(canvas, None, eps)])


def _self_condition(model: Model, signal: Tensor) -> Tensor:
    normed = model.kernels.rms_norm(signal, model.self_conditioning.pre_norm, model.config.rms_norm_eps)
    return model.self_conditioning.mlp(normed)

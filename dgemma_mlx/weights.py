"""From a checked checkpoint to a model: reading, casting, fusing gate and up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import cast

import mlx.core as mx

from dgemma.checkpoint import Checkpoint
from dgemma.config import LayerShape, ModelConfig
from dgemma.errors import CheckpointError
from dgemma.names import DECODER, EMBEDDING, ENCODER, MULTIPLIER, Plan, module
from dgemma_mlx.attention import Attention
from dgemma_mlx.kernels import Kernels
from dgemma_mlx.model import MLP, Layer, Model, SelfConditioning
from dgemma_mlx.moe import MoE, Router
from dgemma_mlx.quant import (
    Embedding,
    Experts,
    Linear,
    Packed,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
    beside,
)


def load_model(
    checkpoint: Checkpoint, config: ModelConfig, device: mx.Device, dtype: mx.Dtype, kernels: Kernels
) -> Model:
    """Read every text tensor; norms and router scales become float32, the rest `dtype`, packed weights stay packed."""
    read = Reader(checkpoint, checkpoint.plan(config), device, dtype)
    read.check_duplicates()
    return Model(
        config=config,
        embed_tokens=read.embedding(EMBEDDING),
        embed_scale=float(mx.array(config.hidden_size**0.5).astype(dtype)),
        self_conditioning=_self_conditioning(read),
        layers=tuple(_layer(read, config, index, shape) for index, shape in enumerate(config.layers)),
        norm=read.exact(DECODER + "norm.weight"),
        dtype=dtype,
        device=device,
        kernels=kernels,
    )


class Reader:
    """Reads canonical tensors out of shards that MLX loads lazily."""

    def __init__(self, checkpoint: Checkpoint, plan: Plan, device: mx.Device, dtype: mx.Dtype) -> None:
        self._checkpoint, self._plan = checkpoint, plan
        self._dtype = dtype
        self._widen = device.type == mx.DeviceType.cpu and dtype != mx.float32
        self._files: dict[Path, dict[str, mx.array]] = {}

    def __call__(self, name: str) -> mx.array:
        """The tensor in the model's dtype."""
        return self._assembled(name).astype(self._dtype)

    def exact(self, name: str) -> mx.array:
        """The tensor in float32."""
        return self._assembled(name).astype(mx.float32)

    def linear(self, name: str) -> Linear:
        """A matrix in its stored format."""
        packed = self._packed(name)
        return PlainLinear(self(name)) if packed is None else PackedLinear(packed)

    def embedding(self, name: str) -> Embedding:
        """The embedding in its stored format."""
        packed = self._packed(name)
        return PlainEmbedding(self(name)) if packed is None else PackedEmbedding(packed, self._dtype)

    def experts(self, name: str) -> Experts:
        """Stacked matrices in their stored format."""
        packed = self._packed(name)
        return PlainExperts(self(name), self._widen) if packed is None else PackedExperts(packed)

    def check_duplicates(self) -> None:
        """Stored copies of tied tensors must equal their twins."""
        for copy, original in self._plan.duplicates.items():
            if not mx.array_equal(self._stored(copy), self._assembled(original)).item():
                raise CheckpointError(
                    f"{copy} differs from {original}, with which it is tied.", "The weights are damaged."
                )

    def _packed(self, name: str) -> Packed | None:
        path, quantization = module(name), self._checkpoint.quantization
        if quantization is None or f"{path}.scales" not in self._plan.sources:
            return None
        spec = quantization.spec(path)
        if spec is None:
            raise CheckpointError(f"{path} is stored quantized, but config.json says it is not.")
        weight, scales = self._assembled(name), self._assembled(f"{path}.scales")
        biases = self._widened(self._assembled(f"{path}.biases")) if spec.has_biases else None
        multiplier = self.exact(path + MULTIPLIER) if path + MULTIPLIER in self._plan.sources else None
        return Packed(weight, self._widened(scales) if spec.has_biases else scales, biases, multiplier, spec)

    def _widened(self, scales: mx.array) -> mx.array:
        """Affine scales in the model's dtype if that loses nothing; otherwise MLX computes the product in float32."""
        return scales.astype(self._dtype) if self._dtype == mx.float32 else scales

    def _assembled(self, name: str) -> mx.array:
        return self._plan.sources[name].assemble(self._stored, mx.concatenate, mx.stack)

    def _stored(self, name: str) -> mx.array:
        shard = self._checkpoint.info(name).shard
        if shard not in self._files:
            self._files[shard] = cast(dict[str, mx.array], mx.load(str(shard)))
        return self._files[shard][name]


def _self_conditioning(read: Reader) -> SelfConditioning:
    prefix = DECODER + "self_conditioning."
    return SelfConditioning(read.exact(prefix + "pre_norm.weight"), _mlp(read, prefix))


def _mlp(read: Reader, prefix: str) -> MLP:
    gate_up = beside(read.linear(prefix + "gate_proj.weight"), read.linear(prefix + "up_proj.weight"))
    return MLP(gate_up, read.linear(prefix + "down_proj.weight"))


def _layer(read: Reader, config: ModelConfig, index: int, shape: LayerShape) -> Layer:
    prefix = f"{DECODER}layers.{index}."
    norm: Callable[[str], mx.array] = lambda name: read.exact(f"{prefix}{name}.weight")  # noqa: E731
    return Layer(
        self_attn=_attention(read, config, prefix + "self_attn.", shape),
        mlp=_mlp(read, prefix + "mlp."),
        moe=_moe(read, config, prefix),
        input_layernorm=norm("input_layernorm"),
        post_attention_layernorm=norm("post_attention_layernorm"),
        pre_feedforward_layernorm=norm("pre_feedforward_layernorm"),
        post_feedforward_layernorm=norm("post_feedforward_layernorm"),
        post_feedforward_layernorm_1=norm("post_feedforward_layernorm_1"),
        post_feedforward_layernorm_2=norm("post_feedforward_layernorm_2"),
        pre_feedforward_layernorm_2=norm("pre_feedforward_layernorm_2"),
        layer_scalar=mx.concatenate([read(f"{ENCODER}layers.{index}.layer_scalar"), read(prefix + "layer_scalar")]),
    )


def _attention(read: Reader, config: ModelConfig, prefix: str, shape: LayerShape) -> Attention:
    return Attention(
        shape=shape,
        heads=config.num_attention_heads,
        eps=config.rms_norm_eps,
        q_proj=read.linear(prefix + "q_proj.weight"),
        k_proj=read.linear(prefix + "k_proj.weight"),
        v_proj=None if shape.k_eq_v else read.linear(prefix + "v_proj.weight"),
        o_proj=read.linear(prefix + "o_proj.weight"),
        q_norm=read.exact(prefix + "q_norm.weight"),
        k_norm=read.exact(prefix + "k_norm.weight"),
    )


def _moe(read: Reader, config: ModelConfig, prefix: str) -> MoE:
    router = Router(
        proj=read.linear(prefix + "router.proj.weight"),
        scale=read.exact(prefix + "router.scale"),
        per_expert_scale=read.exact(prefix + "router.per_expert_scale"),
        top_k=config.top_k_experts,
        eps=config.rms_norm_eps,
    )
    return MoE(router, read.experts(prefix + "experts.gate_up_proj"), read.experts(prefix + "experts.down_proj"))

"""Bytes and FLOPs of one denoising step from a model's real shapes, and the time below which no machine can take it.

One formula for every machine. Bytes: each weight once (experts by the share that random routing touches), the embedding
a second time for the self-conditioning product, three passes over 16-bit logits, activations, and keys and values.
FLOPs: two per multiplication of the body, the head, the self-conditioning product and the attention.
"""

from __future__ import annotations

from dataclasses import dataclass

from dgemma.bench.machines import Machine
from dgemma.bench.shape import Sizes, parameters
from dgemma.config import LayerShape, ModelConfig

_LOGIT_PASSES = 3
_ACTIVATION_PASSES = 20
_HALF = 2


@dataclass(frozen=True, slots=True)
class Step:
    """One step at a context: bytes by part (`weights` each once, `traffic` the rest) and FLOPs by part."""

    weights: Sizes
    traffic: Sizes
    flops: Sizes

    @property
    def weight_bytes(self) -> float:
        """Every weight once."""
        return sum(self.weights.values())

    @property
    def bytes(self) -> float:
        """All that is moved."""
        return self.weight_bytes + sum(self.traffic.values())

    @property
    def total_flops(self) -> float:
        """All that is computed."""
        return sum(self.flops.values())


@dataclass(frozen=True, slots=True)
class Floor:
    """Milliseconds: `weights_ms` of the weights alone, `memory_ms` of all bytes, `compute_ms` of all FLOPs."""

    weights_ms: float
    memory_ms: float
    compute_ms: float

    @property
    def overlapped_ms(self) -> float:
        """The floor where memory and computation overlap perfectly."""
        return max(self.memory_ms, self.compute_ms)

    @property
    def serial_ms(self) -> float:
        """The time where they do not overlap at all."""
        return self.memory_ms + self.compute_ms


def step(config: ModelConfig, sizes: Sizes, context: int, canvas: int | None = None) -> Step:
    """What one canvas pass behind `context` tokens moves and computes; `sizes` are stored bytes by part."""
    rows = canvas or config.canvas_length
    touched = {name: size * (_touched(config, rows) if name == "experts" else 1) for name, size in sizes.items()}
    return Step(touched, _traffic(config, sizes, context, rows), flops(config, context, rows))


def flops(config: ModelConfig, context: int, rows: int) -> dict[str, float]:
    """FLOPs of a canvas pass by part."""
    counts = parameters(config)
    head = 2.0 * rows * counts["embedding"]
    found = {name: 2.0 * rows * counts[name] for name in ("attention", "dense", "self_conditioning", "router")}
    found["experts"] = 2.0 * rows * counts["experts"] * config.top_k_experts / config.num_experts
    found["scores"] = sum(
        4.0 * rows * _width(config, layer) * _keys(config, layer, context, rows) for layer in config.layers
    )
    return found | {"head": head, "soft_embedding": head}


def floor(found: Step, machine: Machine, expert_bits: float = 16, body_bits: float = 16) -> Floor:
    """The times on a machine whose matrix units take weights of `expert_bits` and `body_bits` as they are."""
    bandwidth = machine.bandwidth * machine.share * 1e6
    return Floor(
        weights_ms=found.weight_bytes / bandwidth,
        memory_ms=found.bytes / bandwidth,
        compute_ms=_compute_ms(found, machine, expert_bits, body_bits),
    )


def _compute_ms(found: Step, machine: Machine, expert_bits: float, body_bits: float) -> float:
    experts, body = machine.expert_rate or machine.rate(expert_bits), machine.rate(body_bits)
    rates = dict.fromkeys(found.flops, machine.bf16)
    rates |= dict.fromkeys(("attention", "dense", "self_conditioning", "router"), body)
    rates |= {"experts": experts, "scores": machine.bf16 * machine.score_share}
    return sum(count / (rates[name] * 1e9) for name, count in found.flops.items())


def _touched(config: ModelConfig, rows: int) -> float:
    """The share of the experts that `rows` tokens reach if routing is uniform: an upper bound."""
    return 1 - (1 - config.top_k_experts / config.num_experts) ** rows


def _traffic(config: ModelConfig, sizes: Sizes, context: int, rows: int) -> dict[str, float]:
    layers = config.num_hidden_layers
    return {
        "embedding_again": sizes["embedding"],
        "logits": float(_LOGIT_PASSES * _HALF * rows * config.vocab_size),
        "activations": float(layers * rows * config.hidden_size * _HALF * _ACTIVATION_PASSES),
        "keys_values": sum(
            2.0 * _HALF * layer.kv_heads * layer.head_dim * _keys(config, layer, context, rows)
            for layer in config.layers
        ),
    }


def _width(config: ModelConfig, layer: LayerShape) -> int:
    return config.num_attention_heads * layer.head_dim


def _keys(config: ModelConfig, layer: LayerShape, context: int, rows: int) -> int:
    window = config.sliding_window - 1
    return rows + (min(context, window) if layer.kind == "sliding_attention" else context)

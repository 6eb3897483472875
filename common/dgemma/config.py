"""What a model folder's config.json and generation_config.json say, as frozen values.

No field has a default that the release does not have: a missing field is an error, an unknown one is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from dgemma.errors import CheckpointError, UnsupportedError

LayerType = Literal["sliding_attention", "full_attention"]
SUPPORTED_MODEL_TYPES = ("diffusion_gemma",)
_ACTIVATION = "gelu_pytorch_tanh"


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of one layer type: `kind` is "default" or "proportional"."""

    kind: str
    theta: float
    partial_rotary_factor: float = 1.0
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class LayerShape:
    """Attention geometry of one layer; full layers take their values from their keys (`k_eq_v`)."""

    kind: LayerType
    kv_heads: int
    head_dim: int
    rope: Rope

    @property
    def k_eq_v(self) -> bool:
        """Whether V is the raw K projection (every full layer)."""
        return self.kind == "full_attention"


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """The text model of a DiffusionGemma checkpoint; names follow config.json."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    moe_intermediate_size: int
    num_experts: int
    top_k_experts: int
    num_attention_heads: int
    sliding_window: int
    max_position_embeddings: int
    rms_norm_eps: float
    final_logit_softcapping: float
    canvas_length: int
    dtype: str
    layers: tuple[LayerShape, ...]

    @property
    def num_hidden_layers(self) -> int:
        """Number of decoder layers."""
        return len(self.layers)

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> ModelConfig:
        """Build from a parsed config.json. Raises UnsupportedError on another model, CheckpointError on a gap."""
        _check_model_type(raw)
        text = _Section(raw.get("text_config"), "text_config")
        _check_fixed_choices(text)
        return cls(
            vocab_size=text.whole("vocab_size"),
            hidden_size=text.whole("hidden_size"),
            intermediate_size=text.whole("intermediate_size"),
            moe_intermediate_size=text.whole("moe_intermediate_size"),
            num_experts=text.whole("num_experts"),
            top_k_experts=text.whole("top_k_experts"),
            num_attention_heads=text.whole("num_attention_heads"),
            sliding_window=text.whole("sliding_window"),
            max_position_embeddings=text.whole("max_position_embeddings"),
            rms_norm_eps=float(text.get("rms_norm_eps")),
            final_logit_softcapping=float(text.get("final_logit_softcapping", 30.0)),
            canvas_length=_Section(raw, "config.json").whole("canvas_length"),
            dtype=_dtype_name(raw),
            layers=_layers(text),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> ModelConfig:
        """Read `folder/config.json`."""
        return cls.from_dict(read_json(folder / "config.json"))


@dataclass(frozen=True, slots=True)
class GenerationDefaults:
    """The sampler settings a checkpoint ships (generation_config.json); None switches a stop threshold off."""

    max_denoising_steps: int
    t_min: float
    t_max: float
    entropy_bound: float
    stability_threshold: int | None
    confidence_threshold: float | None
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any]) -> GenerationDefaults:
        """Build from a parsed generation_config.json."""
        section = _Section(raw, "generation_config.json")
        sampler = _Section(section.get("sampler_config"), "generation_config.json: sampler_config")
        eos = section.get("eos_token_id")
        return cls(
            max_denoising_steps=section.whole("max_denoising_steps"),
            t_min=float(section.get("t_min")),
            t_max=float(section.get("t_max")),
            entropy_bound=float(sampler.get("entropy_bound")),
            stability_threshold=raw.get("stability_threshold"),
            confidence_threshold=raw.get("confidence_threshold"),
            eos_token_ids=tuple(eos) if isinstance(eos, list) else (int(eos),),
            pad_token_id=raw.get("pad_token_id"),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> GenerationDefaults:
        """Read `folder/generation_config.json`."""
        return cls.from_dict(read_json(folder / "generation_config.json"))


def read_json(path: Path) -> dict[str, Any]:
    """Parse a JSON object from `path`. Raises CheckpointError when it is missing, damaged or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path.parent} has no {path.name}.", "Is it a model folder?") from None
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read: {error}.", "Download the model again.") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path} does not hold a JSON object.", "Download the model again.")
    return value


class _Section:
    """A mapping whose missing fields raise an error that names the section."""

    def __init__(self, raw: object, name: str) -> None:
        if not isinstance(raw, Mapping):
            raise CheckpointError(f"{name} is missing or not an object.", "Is config.json that of a DiffusionGemma?")
        self._raw, self._name = raw, name

    def get(self, field: str, default: Any = None) -> Any:
        value = self._raw.get(field)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(f"{self._name} lacks {field}.", "The folder is incomplete or of another model.")
        return value

    def whole(self, field: str) -> int:
        value = self.get(field)
        if isinstance(value, bool) or not isinstance(value, int) or value <= 0:
            raise CheckpointError(f"{self._name}: {field} must be a positive integer, not {value!r}.")
        return value

    def find(self, field: str) -> Any:
        return self._raw.get(field)


def _check_model_type(raw: Mapping[str, Any]) -> None:
    found = raw.get("model_type")
    if found not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedError(
            f"Model type {found!r} is not supported.", f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}."
        )


def _check_fixed_choices(text: _Section) -> None:
    if text.get("hidden_activation", _ACTIVATION) != _ACTIVATION:
        raise UnsupportedError(f"hidden_activation must be {_ACTIVATION}, not {text.get('hidden_activation')!r}.")
    if text.find("use_bidirectional_attention") == "all":
        raise UnsupportedError("use_bidirectional_attention 'all' (a bidirectional encoder) is not supported.")
    if text.find("attention_bias"):
        raise UnsupportedError("attention_bias is not supported.")


def _dtype_name(raw: Mapping[str, Any]) -> str:
    text = raw.get("text_config") or {}
    name = raw.get("dtype") or raw.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype") or "bfloat16"
    return str(name).removeprefix("torch.")


def _layers(text: _Section) -> tuple[LayerShape, ...]:
    kinds = text.get("layer_types")
    if len(kinds) != text.whole("num_hidden_layers"):
        raise CheckpointError(f"text_config: {len(kinds)} layer_types for {text.get('num_hidden_layers')} layers.")
    overrides = text.find("per_layer_config") or {}
    return tuple(_layer(text, kind, overrides.get(str(index)) or {}) for index, kind in enumerate(kinds))


def _layer(text: _Section, kind: str, override: Mapping[str, Any]) -> LayerShape:
    if kind not in ("sliding_attention", "full_attention"):
        raise UnsupportedError(f"Layer type {kind!r} is not supported.")
    full = kind == "full_attention"
    head_dim = override.get("head_dim") or text.get("global_head_dim" if full else "head_dim")
    heads = override.get("num_key_value_heads") or text.get(_kv_field(text, full))
    return LayerShape(cast(LayerType, kind), int(heads), int(head_dim), _rope(text, kind))


def _kv_field(text: _Section, full: bool) -> str:
    """Full layers without a count of their own share the sliding count, as the reference does."""
    separate = full and text.find("num_global_key_value_heads") is not None
    return "num_global_key_value_heads" if separate else "num_key_value_heads"


def _rope(text: _Section, kind: str) -> Rope:
    rope = _Section(text.get("rope_parameters").get(kind), f"text_config.rope_parameters.{kind}")
    name = rope.get("rope_type")
    if name not in ("default", "proportional"):
        raise UnsupportedError(f"rope_type {name!r} is not supported.")
    return Rope(
        kind=name,
        theta=float(rope.get("rope_theta")),
        partial_rotary_factor=float(rope.get("partial_rotary_factor", 1.0)),
        factor=float(rope.get("factor", 1.0)),
    )

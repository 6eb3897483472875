"""What a model folder's config.json and generation_config.json say, as frozen values.

No field has a default that the release does not have: a missing field is an error, an unknown one is ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.jsonfile import read_json
from dgemma.section import Section, as_whole

LayerType = Literal["sliding_attention", "full_attention"]
SUPPORTED_MODEL_TYPES = ("diffusion_gemma",)
_MOST_LAYERS = 1000
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
        text = Section(raw.get("text_config"), "text_config")
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
            rms_norm_eps=text.number("rms_norm_eps"),
            final_logit_softcapping=_softcap(text),
            canvas_length=Section(raw, "config.json").whole("canvas_length"),
            dtype=_dtype_name(Section(raw, "config.json"), text),
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
        section = Section(raw, "generation_config.json")
        return cls(
            max_denoising_steps=section.whole("max_denoising_steps"),
            t_min=section.number("t_min"),
            t_max=section.number("t_max"),
            entropy_bound=section.section("sampler_config").number("entropy_bound"),
            stability_threshold=section.whole("stability_threshold", 0) if section.has("stability_threshold") else None,
            confidence_threshold=section.number("confidence_threshold")
            if section.has("confidence_threshold")
            else None,
            eos_token_ids=_token_ids(section, "eos_token_id"),
            pad_token_id=_pad(section),
        )

    @classmethod
    def from_folder(cls, folder: Path) -> GenerationDefaults:
        """Read `folder/generation_config.json`."""
        return cls.from_dict(read_json(folder / "generation_config.json"))


def _check_model_type(raw: Mapping[str, Any]) -> None:
    found = raw.get("model_type")
    if found not in SUPPORTED_MODEL_TYPES:
        raise UnsupportedError(
            f"Model type {found!r} is not supported.", f"Supported: {', '.join(SUPPORTED_MODEL_TYPES)}."
        )


def _check_fixed_choices(text: Section) -> None:
    activation = text.get("hidden_activation", _ACTIVATION)
    if activation != _ACTIVATION:
        raise UnsupportedError(f"hidden_activation must be {_ACTIVATION}, not {activation!r}.")
    if text.get("use_bidirectional_attention", "vision") == "all":
        raise UnsupportedError("use_bidirectional_attention 'all' (a bidirectional encoder) is not supported.")
    if text.get("attention_bias", False):
        raise UnsupportedError("attention_bias is not supported.")


def _token_ids(section: Section, field: str) -> tuple[int, ...]:
    """One id, or a list of them."""
    value = section.get(field)
    found = [as_whole(each) for each in (value if isinstance(value, list) else [value])]
    ids = tuple(each for each in found if each is not None and 0 <= each < 1 << 31)
    if len(ids) < len(found):
        raise section.wrong(field, "a token id or a list of them", value)
    return ids


def _pad(section: Section) -> int | None:
    """-1 is how some tools write that there is none."""
    found = section.whole("pad_token_id", -1) if section.has("pad_token_id") else -1
    return None if found < 0 else found


def _softcap(text: Section) -> float:
    """The reference divides by it whatever it is; only where it is left out it has a value of its own."""
    found = 0.0 if text.is_null("final_logit_softcapping") else text.number("final_logit_softcapping", 30.0)
    if found <= 0:
        raise text.wrong("final_logit_softcapping", "a positive number", text.get("final_logit_softcapping", "null"))
    return found


def _dtype_name(whole: Section, text: Section) -> str:
    for section in (whole, text):
        for field in ("dtype", "torch_dtype"):
            if section.has(field):
                return section.text(field).removeprefix("torch.")
    return "bfloat16"


def _layers(text: Section) -> tuple[LayerShape, ...]:
    kinds, count = text.items("layer_types"), text.whole("num_hidden_layers")
    if len(kinds) != count:
        raise CheckpointError(f"text_config: {len(kinds)} layer_types for {count} layers.")
    if count > _MOST_LAYERS:
        raise CheckpointError(f"text_config: {count} layers are more than any model has.")
    overrides = text.section("per_layer_config", {})
    return tuple(_layer(text, kind, overrides.section(str(index), {})) for index, kind in enumerate(kinds))


def _layer(text: Section, kind: object, override: Section) -> LayerShape:
    if kind not in ("sliding_attention", "full_attention"):
        raise UnsupportedError(f"Layer type {kind!r} is not supported.")
    full = kind == "full_attention"
    width = "global_head_dim" if full else "head_dim"
    head_dim = override.whole("head_dim") if override.has("head_dim") else text.whole(width)
    own = override.has("num_key_value_heads")
    heads = override.whole("num_key_value_heads") if own else text.whole(_kv_field(text, full))
    return LayerShape(kind, heads, head_dim, _rope(text, str(kind)))


def _kv_field(text: Section, full: bool) -> str:
    """Full layers without a count of their own share the sliding count, as the reference does."""
    return "num_global_key_value_heads" if full and text.has("num_global_key_value_heads") else "num_key_value_heads"


def _rope(text: Section, kind: str) -> Rope:
    rope = text.section("rope_parameters").section(kind)
    name = rope.text("rope_type")
    if name not in ("default", "proportional"):
        raise UnsupportedError(f"rope_type {name!r} is not supported.")
    return Rope(
        kind=name,
        theta=rope.number("rope_theta"),
        partial_rotary_factor=rope.number("partial_rotary_factor", 1.0),
        factor=rope.number("factor", 1.0),
    )

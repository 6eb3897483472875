"""Which module is stored in which MLX quantization format, as config.json says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.section import Section

_GROUP_AND_BITS = {"affine": (64, 4), "mxfp4": (32, 4), "nvfp4": (16, 4), "mxfp8": (32, 8)}
DECLARATIONS = ("quantization", "quantization_config")
_AFFINE_BITS, _AFFINE_GROUPS = (2, 3, 4, 5, 6, 8), (32, 64, 128)


@dataclass(frozen=True, slots=True)
class QuantSpec:
    """A storage format: `mode` is affine, mxfp4, nvfp4 or mxfp8; `group_size` weights of a row share a scale."""

    bits: int
    group_size: int
    mode: str = "affine"

    @property
    def has_biases(self) -> bool:
        """Whether a `.biases` tensor stands beside `.scales`."""
        return self.mode == "affine"

    @classmethod
    def from_dict(cls, raw: Mapping[str, Any], where: str) -> QuantSpec:
        """Build from {group_size, bits, mode}; what is left out takes the mode's own value, as in MLX."""
        section = Section(raw, f"config.json: quantization ({where})")
        mode = section.text("mode", "affine")
        if mode not in _GROUP_AND_BITS:
            raise UnsupportedError(f"Quantization mode {mode!r} ({where}) is not supported.", _choices())
        group_size, bits = _GROUP_AND_BITS[mode]
        spec = cls(section.whole("bits", default=bits), section.whole("group_size", default=group_size), mode)
        if not spec._is_known():
            raise UnsupportedError(f"Quantization {mode} with {spec.bits} bits, groups of {spec.group_size} ({where}).")
        return spec

    def _is_known(self) -> bool:
        if self.mode == "affine":
            return self.bits in _AFFINE_BITS and self.group_size in _AFFINE_GROUPS
        return (self.group_size, self.bits) == _GROUP_AND_BITS[self.mode]


@dataclass(frozen=True, slots=True)
class Quantization:
    """The format of every module: `default`, unless `overrides` names the module (None: not quantized)."""

    default: QuantSpec
    overrides: Mapping[str, QuantSpec | None]

    def spec(self, path: str) -> QuantSpec | None:
        """The format of the module `path`, if it is stored quantized at all (that is, if `path`.scales exists)."""
        return self.overrides.get(path, self.default)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Quantization | None:
        """Read what config.json declares; None where the weights are plain."""
        raw = declared(config)
        if raw is None:
            return None
        _refuse_foreign(raw)
        default = QuantSpec.from_dict(raw, "default")
        entries = {path: value for path, value in raw.items() if isinstance(value, Mapping | bool)}
        return cls(default, {path: _override(path, value, default) for path, value in entries.items()})


def declared(config: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What config.json says about quantization, wherever it says so."""
    text = config.get("text_config")
    for place in (config, text if isinstance(text, Mapping) else {}):
        for key in DECLARATIONS:
            found: object = place.get(key)
            if found is not None and not isinstance(found, Mapping):
                raise CheckpointError(f"config.json: {key} is not an object.")
            if found:
                return found
    return None


def undeclared(config: Mapping[str, Any]) -> dict[str, Any]:
    """`config` without a word of quantization, in its sections neither."""
    return {
        key: _plain(value) if isinstance(value, Mapping) and key.endswith("_config") else value
        for key, value in _plain(config).items()
    }


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in section.items() if key not in DECLARATIONS}


def _override(path: str, value: Mapping[str, Any] | bool, default: QuantSpec) -> QuantSpec | None:
    if isinstance(value, Mapping):
        return QuantSpec.from_dict(value, path)
    return default if value else None


def _refuse_foreign(raw: Mapping[str, Any]) -> None:
    method = raw.get("quant_method") or raw.get("quant_algo")
    if method and method != "mlx":
        raise UnsupportedError(
            f"Weights quantized by {method!r} do not run as they are.",
            "Convert them once: dgemma convert MODEL FOLDER",
        )


def _choices() -> str:
    return f"Supported: {', '.join(_GROUP_AND_BITS)}."

"""One file for every format that can be read; which one a model is in shows in its files."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dgemma.errors import ModelNotFoundError, UnsupportedError
from dgemma.jsonfile import read_json
from dgemma.quantization import declared
from dgemma_convert.readers import compressed, gguf, hub, mlx, modelopt
from dgemma_convert.readers.folder import unreadable
from dgemma_convert.source import Source

Reader = Callable[[Path, Mapping[str, Any]], Source]
_METHODS: dict[str, Reader] = {"modelopt": modelopt.read, "compressed-tensors": compressed.read, "mlx": mlx.read}
_REFUSED = {
    "awq": "AWQ's interleaved layout is not read",
    "gptq": "GPTQ's column order is not read",
    "auto-round": "AutoRound's GPTQ layout is not read",
    "bitsandbytes": "NF4 has no exact counterpart in a format that both backends run",
}
_INSTEAD = "Convert the original repository (google/diffusiongemma-26B-A4B-it) with --bits 4 instead."


def open_source(path: Path) -> Source:
    """The model in the folder or .gguf file `path`, its names and shapes checked; no tensor is read."""
    try:
        return _opened(path)
    except OSError as error:
        raise unreadable(error, path) from error


def _opened(path: Path) -> Source:
    if path.is_file():
        return gguf.read(path)
    if not path.is_dir():
        raise ModelNotFoundError(f"There is no folder or file {path}.")
    if not (path / "config.json").is_file() and any(path.glob("*.gguf")):
        raise UnsupportedError(f"{path} holds GGUF files.", "Name one of them instead of the folder.")
    config = read_json(path / "config.json")
    method = _method(path, config)
    if method is None:
        return hub.read(path, config)
    if method not in _METHODS:
        reason = _REFUSED.get(method.split("-")[0], _REFUSED.get(method, "its layout is not known here"))
        raise UnsupportedError(f"Weights quantized by {method} cannot be converted: {reason}.", _INSTEAD)
    return _METHODS[method](path, config)


def _method(path: Path, config: Mapping[str, Any]) -> str | None:
    found = declared(config)
    if (path / "hf_quant_config.json").is_file():
        return "modelopt"
    if found is None:
        return None
    return str(found.get("quant_method") or "mlx").lower()

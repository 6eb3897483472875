"""What all model folders have in common: tensors as pieces, modules with several tensors, and the other files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.shards import Shape, TensorInfo
from dgemma_convert.floats import FLOATS
from dgemma_convert.pieces import Plain
from dgemma_convert.source import Source, Stored, assemble
from dgemma_convert.stretch import Stretch

Modules = dict[str, dict[str, TensorInfo]]
_COPIED = (".json", ".jinja", ".model", ".txt")
_REPLACED = ("config.json", "model.safetensors.index.json", "hf_quant_config.json", "dgemma_convert.json")
_LARGEST_FILE = 100_000_000


def source(
    path: Path, kind: str, config: Mapping[str, Any], stored: Mapping[str, Stored], dropped: Iterable[str] = ()
) -> Source:
    """The source in the folder `path` out of its stored weights."""
    plain = {key: value for key, value in config.items() if key not in ("quantization", "quantization_config")}
    weights, duplicates = assemble(stored, plain)
    return Source(path, kind, plain, weights, duplicates, copied(path), tuple(sorted(dropped)))


def copied(folder: Path) -> dict[str, Path | bytes]:
    """The files that go along: tokenizer, chat template, generation and processor settings, licence."""
    files = (path for path in sorted(folder.iterdir()) if path.is_file())
    wanted = (path for path in files if path.suffix in _COPIED or path.name.upper().startswith(("LICENSE", "NOTICE")))
    return {p.name: p for p in wanted if p.name not in _REPLACED and p.stat().st_size <= _LARGEST_FILE}


def plain(name: str, info: TensorInfo) -> Stored:
    """An unquantized tensor."""
    if info.dtype not in FLOATS:
        raise UnsupportedError(f"{name} is stored as {info.dtype}, which the format does not explain.")
    return Stored(Plain(Stretch.of(info), info.dtype), info.shape)


def modules(
    tensors: Mapping[str, TensorInfo], parts: Iterable[str], mark: str
) -> tuple[Modules, dict[str, TensorInfo]]:
    """Tensors called module.part, by module and part, for the modules that have a tensor module.`mark`; the rest."""
    wanted = set(parts)
    paths = {name.removesuffix("." + mark) for name in tensors if name.endswith("." + mark)}
    found: Modules = {path: {} for path in paths}
    rest: dict[str, TensorInfo] = {}
    for name, info in tensors.items():
        path, _, part = name.rpartition(".")
        if path in paths and part in wanted:
            found[path][part] = info
        else:
            rest[name] = info
    return found, rest


def expect(path: str, part: str, info: TensorInfo | None, dtypes: Iterable[str], shapes: Iterable[Shape]) -> None:
    """Raise CheckpointError unless the tensor is there with one of the dtypes and one of the shapes."""
    if info is None:
        raise CheckpointError(f"{path} lacks its {part}.", "The folder is incomplete.")
    if info.dtype not in dtypes or info.shape not in shapes:
        wanted = " or ".join(str(list(shape)) for shape in shapes)
        raise CheckpointError(f"{path}.{part} is {info.dtype} {list(info.shape)} instead of {wanted}.")

"""What all model folders have in common: tensors as pieces, modules with several tensors, and the other files."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.names import VISION
from dgemma.quantization import undeclared
from dgemma.shards import Shape, TensorInfo
from dgemma_convert.floats import FLOATS, INDICES
from dgemma_convert.pieces import Plain
from dgemma_convert.readers.links import leads_away
from dgemma_convert.source import Source, Stored, assemble
from dgemma_convert.stretch import Stretch

Modules = dict[str, dict[str, TensorInfo]]
_COPIED = (".json", ".jinja", ".model", ".txt")
_REPLACED = ("config.json", "model.safetensors.index.json", "hf_quant_config.json", "dgemma_convert.json")
_NEEDED = ("tokenizer.json", "generation_config.json")
_LARGEST_FILE = 100_000_000


def source(
    path: Path, kind: str, config: Mapping[str, Any], stored: Mapping[str, Stored], dropped: Iterable[str] = ()
) -> Source:
    """The source in the folder `path` out of its stored weights."""
    plain = undeclared(config)
    weights, duplicates = assemble(stored, plain)
    files = copied(path)
    notes = tuple(_notes(path, config, weights, files))
    return Source(path, kind, plain, weights, duplicates, files, tuple(sorted(dropped)), notes)


def copied(folder: Path) -> dict[str, Path | bytes]:
    """The files that go along: tokenizer, chat template, generation and processor settings, licence.

    A link must stay in the folder, or lead where the hub's cache keeps the files of a model.
    """
    found: dict[str, Path | bytes] = {}
    for path in _companions(folder):
        if leads_away(path, folder):
            raise CheckpointError(f"{path.name} is a link to {path.resolve()}.", "Put the file itself into the folder.")
        if path.stat().st_size <= _LARGEST_FILE:
            _check_readable(path)
            found[path.name] = path
    return found


def unreadable(error: OSError, path: Path) -> CheckpointError:
    """What is raised where the system refuses to read a file of the source, or the source `path` itself."""
    return CheckpointError(f"{error.filename or path} cannot be read: {error.strerror or error}.")


def _check_readable(path: Path) -> None:
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        raise unreadable(error, path) from error


def _companions(folder: Path) -> list[Path]:
    """Hidden files are nobody's business: they may hold credentials."""
    seen = (path for path in sorted(folder.iterdir()) if not path.name.startswith("."))
    files = (path for path in seen if path.name not in _REPLACED and path.is_file())
    return [path for path in files if path.suffix in _COPIED or path.name.upper().startswith(("LICENSE", "NOTICE"))]


def _notes(
    folder: Path, config: Mapping[str, Any], weights: Mapping[str, object], files: Mapping[str, object]
) -> Iterator[str]:
    if config.get("vision_config") and not any(name.startswith(VISION) for name in weights):
        yield (
            "config.json has a vision_config, but there are no vision tensors: dgemma reads text only, mlx-vlm refuses "
            "the result, transformers makes up a vision tower."
        )
    if missing := [name for name in _NEEDED if name not in files]:
        yield f"The source has no {' and no '.join(missing)}: the result does not run until that is added."
    if large := [path.name for path in _companions(folder) if path.name not in files]:
        yield f"Left out, being larger than {_LARGEST_FILE // 10**6} MB: {', '.join(map(repr, large))}."


def plain(name: str, info: TensorInfo) -> Stored:
    """An unquantized tensor; those of the vision part may hold positions and the like."""
    if info.dtype not in FLOATS and not (name.startswith(VISION) and info.dtype in INDICES):
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
        wanted = f"{'/'.join(dtypes)} {' or '.join(str(list(shape)) for shape in shapes)}"
        raise CheckpointError(f"{path}.{part} is {info.dtype} {list(info.shape)} instead of {wanted}.")

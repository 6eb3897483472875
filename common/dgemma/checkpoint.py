"""A model folder's weights as names, shapes and places. Backends load the bytes with their own library.

Everything is checked before a backend sees it: a hostile or damaged file ends in a CheckpointError, never in a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from dgemma.config import ModelConfig
from dgemma.errors import CheckpointError
from dgemma.jsonfile import read_json
from dgemma.names import Plan, check_strict, plan
from dgemma.quantization import Quantization
from dgemma.shards import Shape, TensorInfo, read_shard

_SINGLE, _INDEX = "model.safetensors", "model.safetensors.index.json"
_AGAIN = "Download the model again."


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The tensors of a folder by stored name, and the quantization that its config.json declares."""

    folder: Path
    tensors: Mapping[str, TensorInfo]
    quantization: Quantization | None

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """Read the headers of model.safetensors or of the shards that its index names."""
        quantization = Quantization.from_config(read_json(folder / "config.json"))
        return cls(folder, read_tensors(folder), quantization)

    @property
    def names(self) -> tuple[str, ...]:
        """Stored names in alphabetical order."""
        return tuple(sorted(self.tensors))

    @property
    def shards(self) -> tuple[Path, ...]:
        """The files, each once, in alphabetical order."""
        return tuple(sorted({info.shard for info in self.tensors.values()}))

    @property
    def nbytes(self) -> int:
        """Stored bytes of all tensors."""
        return sum(info.nbytes for info in self.tensors.values())

    def info(self, name: str) -> TensorInfo:
        """Where the tensor stored as `name` lies."""
        return self.tensors[name]

    def plan(self, config: ModelConfig) -> Plan:
        """How to build every text tensor; raises CheckpointError unless names and shapes are exactly `config`'s."""
        found = plan(self.tensors)
        check_strict({name: self._shape(found, name) for name in found.sources}, config, self.quantization)
        return found

    def _shape(self, found: Plan, name: str) -> Shape:
        return found.sources[name].assemble(lambda part: self.tensors[part].shape, join_shapes, stack_shapes)


def join_shapes(shapes: list[Shape], axis: int) -> Shape:
    """The shape of tensors joined along `axis`."""
    first = shapes[0]
    rest = {(*shape[:axis], *shape[axis + 1 :]) for shape in shapes}
    if len(rest) > 1 or len(first) <= axis:
        raise CheckpointError(f"Expert weights of different shapes: {[list(shape) for shape in shapes]}.", _AGAIN)
    return (*first[:axis], sum(shape[axis] for shape in shapes), *first[axis + 1 :])


def stack_shapes(shapes: list[Shape]) -> Shape:
    """The shape of tensors stacked along a new first axis."""
    if len(set(shapes)) > 1:
        raise CheckpointError(f"Experts of different shapes: {sorted(set(shapes))[:2]}.", _AGAIN)
    return (len(shapes), *shapes[0])


def read_tensors(folder: Path) -> dict[str, TensorInfo]:
    """The tensors of model.safetensors or of the shards that its index names, by stored name."""
    if (folder / _INDEX).is_file():
        return _read_sharded(folder)
    if not (folder / _SINGLE).is_file():
        raise CheckpointError(f"{folder} has neither {_SINGLE} nor {_INDEX}.", "Is it a model folder?")
    return read_shard(folder / _SINGLE)


def _read_sharded(folder: Path) -> dict[str, TensorInfo]:
    weight_map = read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{_INDEX} has no weight_map.", _AGAIN)
    tensors: dict[str, TensorInfo] = {}
    for shard in sorted({_shard_name(value) for value in weight_map.values()}):
        fresh = read_shard(folder / shard)
        if twice := tensors.keys() & fresh.keys():
            raise CheckpointError(f"{shard} repeats {min(twice)} of another shard.", _AGAIN)
        tensors.update(fresh)
    _check_index(weight_map, tensors)
    return tensors


def _shard_name(value: object) -> str:
    if not isinstance(value, str) or PurePosixPath(value).name != value or "\\" in value or not value.isprintable():
        raise CheckpointError(f"{_INDEX} names a shard outside the folder: {value!r}.", _AGAIN)
    return value


def _check_index(weight_map: Mapping[str, str], tensors: Mapping[str, TensorInfo]) -> None:
    for name, shard in sorted(weight_map.items()):
        if name not in tensors or tensors[name].shard.name != shard:
            raise CheckpointError(f"{shard} does not hold {name}, although {_INDEX} says so.", _AGAIN)

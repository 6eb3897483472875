"""What a model folder says about itself: hash, stored format, bytes and FLOPs of a step."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Any

from dgemma.bench.roofline import step
from dgemma.bench.shape import stored
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import DgemmaError
from dgemma.jsonfile import read_json

RANDOM = "random_weights"
_CONTEXT = 256
_SHARE = 1 << 20


def describe(folder: Path) -> dict[str, Any]:
    """The columns of `Identity` that a folder decides, whichever engine loads it."""
    found = {"model_hash": model_hash(folder), "random_weights": bool(read_json(folder / "config.json").get(RANDOM))}
    try:
        config, checkpoint = ModelConfig.from_folder(folder), Checkpoint.open(folder)
        cost = step(config, stored(checkpoint, config), _CONTEXT)
    except DgemmaError:
        return found
    found |= {"weight_format": weight_format(checkpoint), "canvas_length": config.canvas_length}
    return found | {"step_bytes": cost.bytes, "step_flops": cost.total_flops}


def model_hash(folder: Path) -> str:
    """A hash of config.json and of each shard's size, header and last megabyte: quick, and new for new weights."""
    found = sha256((folder / "config.json").read_bytes())
    for shard in sorted(folder.glob("*.safetensors")):
        size = shard.stat().st_size
        found.update(f"{shard.name} {size}".encode())
        with shard.open("rb") as file:
            found.update(file.read(_SHARE))
            file.seek(max(0, size - _SHARE))
            found.update(file.read(_SHARE))
    return found.hexdigest()[:16]


def weight_format(checkpoint: Checkpoint) -> str:
    """How most bytes are stored: an MLX format with its bits, or a plain dtype."""
    if checkpoint.quantization is not None:
        default = checkpoint.quantization.default
        return f"{default.mode} {default.bits} bit g{default.group_size}"
    sizes: Counter[str] = Counter()
    for info in checkpoint.tensors.values():
        sizes[info.dtype] += info.nbytes
    return sizes.most_common(1)[0][0].lower()

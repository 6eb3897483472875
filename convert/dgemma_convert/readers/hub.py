"""Reads the hub layout: plain bf16, fp16 or fp32 safetensors, in one file or in shards."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgemma.checkpoint import read_tensors
from dgemma_convert.readers.folder import plain, source
from dgemma_convert.source import Source


def read(path: Path, config: Mapping[str, Any]) -> Source:
    """The model in the folder `path`."""
    stored = {name: plain(name, info) for name, info in read_tensors(path).items()}
    return source(path, "safetensors", config, stored)

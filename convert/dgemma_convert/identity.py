"""What a finished result was made of: a digest that its report keeps, the same for the same files and flags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from dgemma_convert.plan import Plan
from dgemma_convert.readers.folder import unreadable

_SUFFIXES = (".safetensors", ".gguf", ".json")
_BLOCK = 1 << 14
_BLOCKS = 64


def digest(plan: Plan) -> str:
    """A digest of the source's files, the flags and every decision, without the time of any file.

    Of a file of more than a megabyte it takes the size and blocks from all over: enough to tell one set of weights
    from another, not to find a changed number.
    """
    found = hashlib.sha256(json.dumps([str(plan.options), decisions(plan)]).encode())
    try:
        for name, size, blocks in _files(plan):
            found.update(json.dumps([name, size]).encode())
            for block in blocks:
                found.update(block)
    except OSError as error:
        raise unreadable(error, plan.source.path) from error
    return found.hexdigest()


def decisions(plan: Plan) -> list[object]:
    """What becomes of every tensor, as JSON holds it."""
    return [(item.weight.name, item.target, item.label, [str(each) for each in item.outputs]) for item in plan.items]


def _files(plan: Plan) -> Iterator[tuple[str, int, Iterator[bytes]]]:
    """Weights and settings, then what is copied: names, sizes, blocks."""
    path = plan.source.path
    stored = sorted(path.iterdir()) if path.is_dir() else [path]
    for file in stored:
        if file.is_file() and file.suffix in _SUFFIXES and not file.name.startswith("."):
            yield file.name, file.stat().st_size, _blocks(file)
    for name, content in sorted(plan.source.files.items()):
        if isinstance(content, bytes):
            yield name, len(content), iter([content])
        else:
            yield name, content.stat().st_size, _blocks(content)


def _blocks(path: Path) -> Iterator[bytes]:
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= _BLOCK * _BLOCKS:
            yield file.read()
            return
        for place in range(_BLOCKS):
            file.seek((size - _BLOCK) * place // (_BLOCKS - 1))
            yield file.read(_BLOCK)

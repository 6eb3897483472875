"""Links in a model folder: they may stay in it, or lead where the hub's cache keeps its files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

_REPOSITORY, _SNAPSHOTS, _BLOBS = "models--", "snapshots", "blobs"


def leads_away(path: Path, folder: Path) -> bool:
    """Whether the file `path` of `folder` lies neither in the folder nor among the blobs of its cache.

    A snapshot of the cache has the blobs of its own repository. Another folder may link into those of any, as older
    versions of huggingface_hub fill a folder; but not by way of itself, where whoever made it decides what is a cache.
    """
    found = path.resolve()
    own = [folder.resolve()]
    blobs = list(_beside(folder)) or [
        place for place in _among(path) if not any(place.is_relative_to(each) for each in (*own, folder.absolute()))
    ]
    return not any(found.is_relative_to(place.resolve()) for place in own + blobs)


def _beside(folder: Path) -> Iterator[Path]:
    """The blobs of the repository that `folder` is a snapshot of, under every name it has."""
    for step in _steps(folder):
        if step.parent.name == _SNAPSHOTS and step.parent.parent.name.startswith(_REPOSITORY):
            yield step.parent.parent / _BLOBS


def _among(path: Path) -> Iterator[Path]:
    """The blobs of every repository that the links of `path` lead through."""
    for step in _steps(path):
        for place in step.parents:
            if place.name == _BLOBS and place.parent.name.startswith(_REPOSITORY):
                yield place


def _steps(path: Path) -> Iterator[Path]:
    """`path`, what it links to, what that links to, and where it lies in the end."""
    step = Path(os.path.normpath(path.absolute()))
    yield step
    while step.is_symlink():
        step = Path(os.path.normpath(step.parent.resolve() / step.readlink()))
        yield step
    yield path.resolve()

"""A tiny model and what it becomes.

One thread: tiny products only wait for one another. No waiting for the disk: no test pulls a plug.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from dgemma_convert import convert
from tests.convert import models
from tests.convert.children import OPTIONS, contents

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing takes most of the time of a tiny conversion."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, os.fstat)


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model in the hub layout."""
    return models.hub(tmp_path_factory.mktemp("hub") / "source")


@pytest.fixture(scope="module")
def whole(source: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The files of an undisturbed conversion of it with `OPTIONS`."""
    target = tmp_path_factory.mktemp("whole") / "out"
    convert(source, target, OPTIONS)
    return contents(target)

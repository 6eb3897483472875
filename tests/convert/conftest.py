"""One thread: tiny products only wait for one another. No waiting for the disk: no test pulls a plug."""

from __future__ import annotations

import os

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def quick_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Syncing takes most of the time of a tiny conversion."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, os.fstat)

"""Fixtures of the parity tests.

`DGEMMA_PARITY_BACKENDS` (a comma-separated list) narrows the backends under test; "reference" is transformers behind
the backend protocol and shows that the tests themselves are right.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from dgemma.backend import REGISTRY, Backend
from tests.parity import tiny
from tests.parity.oracle import Oracle
from tests.parity.support import open_cpu

REGISTRY.setdefault("reference", "tests.parity.reference:open_backend")
torch.set_num_threads(1)

Folders = Callable[[tiny.Variant], Path]


@pytest.fixture(scope="session", params=os.environ.get("DGEMMA_PARITY_BACKENDS", "cuda,mlx").split(","))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Folders:
    """Writes each variant of the tiny model once per session."""
    written: dict[tiny.Variant, Path] = {}

    def folder(variant: tiny.Variant) -> Path:
        if variant not in written:
            written[variant] = tiny.write(tmp_path_factory.mktemp("tiny"), variant)
        return written[variant]

    return folder


@pytest.fixture(scope="session")
def tiny_folder(folders: Folders) -> Path:
    return folders(tiny.Variant())


@pytest.fixture(scope="session")
def oracle(tiny_folder: Path) -> Oracle:
    return Oracle(tiny_folder)


@pytest.fixture(scope="session")
def backend(name: str, tiny_folder: Path) -> Backend:
    return open_cpu(name, tiny_folder)

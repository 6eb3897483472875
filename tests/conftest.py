"""Fixtures that every test folder shares."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

from tiny_folder import write_folder, write_json

settings.register_profile("dgemma", deadline=None)
settings.load_profile("dgemma")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "model")


@pytest.fixture
def edit(folder: Path) -> Callable[[str, Callable[[dict], object]], Path]:
    """Change one of the folder's JSON files in place."""

    def apply(name: str, change: Callable[[dict], object]) -> Path:
        value = json.loads((folder / name).read_text())
        change(value)
        write_json(folder / name, value)
        return folder

    return apply

"""Sources that may not be read: told by name before the work, as an error of the source."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgemma.cli import app
from dgemma_convert import Options, preview
from tests.convert import models

RUN = CliRunner()
_NOBODY = 65534


@pytest.fixture
def source() -> Iterator[Path]:
    """A model in a place that everyone may enter, unlike pytest's."""
    with tempfile.TemporaryDirectory() as place:
        Path(place).chmod(0o777)
        folder = models.hub(Path(place) / "above" / "source")
        for name in ("tokenizer.json", "LICENSE", "extra.json"):
            (folder / name).write_text("{}")
        for path in folder.iterdir():
            path.chmod(0o644)
        yield folder


@contextmanager
def powerless() -> Iterator[None]:
    """Not as root, whom no permission stops."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(_NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("dry", [True, False], ids=["dry", "run"])
@pytest.mark.parametrize(
    "forbidden",
    ["tokenizer.json", "LICENSE", "extra.json", "chat_template.jinja", "config.json", "model.safetensors", ".", ".."],
)
def test_what_may_not_be_read_is_named(source: Path, forbidden: str, dry: bool) -> None:
    place, target = source.parent.parent, source.parent.parent / "out"
    preview(source, Options())
    path = Path(os.path.normpath(source / forbidden))
    mode = path.stat().st_mode
    path.chmod(0)
    try:
        with powerless():
            result = RUN.invoke(app, ["convert", str(source), str(target), *["--dry-run"][: int(dry)]])
    finally:
        path.chmod(mode)
    assert result.exit_code == 4, result.stderr
    assert (path.name if forbidden != ".." else str(source)) in result.stderr
    assert "cannot be read" in result.stderr
    assert result.stderr.count("\n") == 1
    assert [each.name for each in place.iterdir()] == ["above"]


@pytest.mark.parametrize("name", [".credentials.json", ".env.txt", ".LICENSE", ".json", ".tokenizer.model"])
def test_hidden_files_stay_where_they_are(source: Path, name: str) -> None:
    (source / name).write_text("{}")
    (source / name).chmod(0)
    with powerless():
        files = set(preview(source, Options()).source.files)
    assert files == {"tokenizer.json", "LICENSE", "extra.json", "chat_template.jinja", "generation_config.json"}

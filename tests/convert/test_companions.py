"""What lies beside the weights: links that lead away, gaps, and names that would steer a terminal."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from typer.testing import CliRunner

from dgemma.cli import app
from dgemma.errors import CheckpointError
from dgemma_convert import Options, convert, preview
from tests.convert import models

RUN = CliRunner()
NAMES = ("tokenizer.json", "tokenizer_config.json", "LICENSE", "chat_template.jinja", "notes.txt")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return models.hub(tmp_path / "source")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("absolute", [True, False])
def test_links_that_lead_away_are_refused(source: Path, tmp_path: Path, name: str, absolute: bool) -> None:
    (tmp_path / "secret").write_text("{}")
    (source / name).unlink(missing_ok=True)
    (source / name).symlink_to(tmp_path / "secret" if absolute else "../secret")
    with pytest.raises(CheckpointError, match=f"{name} is a link to .*secret"):
        convert(source, tmp_path / "out", Options())
    assert not list(tmp_path.glob("out*"))


def test_a_link_through_a_folder_is_refused(source: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "tokenizer.json").write_text("{}")
    (source / "sub").symlink_to(tmp_path / "elsewhere")
    (source / "tokenizer.json").symlink_to("sub/tokenizer.json")
    with pytest.raises(CheckpointError, match="is a link"):
        convert(source, tmp_path / "out", Options())


def test_links_in_the_folder_are_followed(source: Path, tmp_path: Path) -> None:
    (source / "original").mkdir()
    (source / "original" / "t").write_text("{}")
    (source / "tokenizer.json").symlink_to("original/t")
    (tmp_path / "alias").symlink_to(source)
    convert(tmp_path / "alias", tmp_path / "out", Options())
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()


def cached(source: Path, home: Path) -> Path:
    """The folder as the hub's cache keeps it: links into the blobs beside it."""
    snapshot, blobs = home / "snapshots" / "abc", home / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for path in source.iterdir():
        shutil.copy(path, blobs / f"hash-{path.name}")
        (snapshot / path.name).symlink_to(f"../../blobs/hash-{path.name}")
    return snapshot


def test_snapshots_of_the_hub_are_followed(source: Path, tmp_path: Path) -> None:
    convert(cached(source, tmp_path / "models--a--b"), tmp_path / "out", Options())
    assert (tmp_path / "out" / "generation_config.json").read_bytes() == (
        source / "generation_config.json"
    ).read_bytes()


def test_links_into_another_model_of_the_cache_are_refused(source: Path, tmp_path: Path) -> None:
    snapshot = cached(source, tmp_path / "models--a--b")
    other = tmp_path / "models--a--secret" / "blobs"
    other.mkdir(parents=True)
    (other / "x").write_text("{}")
    (snapshot / "tokenizer.json").symlink_to("../../../models--a--secret/blobs/x")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is a link"):
        preview(snapshot, Options())


def moved(path: Path, disk: Path) -> None:
    """`path` on another disk, with a link in its place."""
    disk.mkdir()
    path.rename(disk / "store")
    path.symlink_to(disk / "store")


@pytest.mark.parametrize("relative", [True, False])
@pytest.mark.parametrize("layout", ["repository", "blobs", "snapshots", "cache", "alias", "filled", "filled, moved"])
def test_layouts_of_the_hubs_cache_are_followed(source: Path, tmp_path: Path, layout: str, relative: bool) -> None:
    (source / "tokenizer.json").write_text("{}")
    home = tmp_path / "hub" / "models--a--b"
    folder = cached(source, home)
    if layout.startswith("filled"):
        shutil.rmtree(folder)
        (tmp_path / "folder").mkdir()
        for blob in (home / "blobs").iterdir():
            target = f"../hub/models--a--b/blobs/{blob.name}" if relative else blob
            (tmp_path / "folder" / blob.name.removeprefix("hash-")).symlink_to(target)
        folder = tmp_path / "folder"
    elif not relative:
        for link in list(folder.iterdir()):
            link.unlink()
            link.symlink_to(home / "blobs" / f"hash-{link.name}")
    away = {"repository": home, "alias": home, "filled, moved": home, "cache": home.parent}
    away |= {"blobs": home / "blobs", "snapshots": home / "snapshots"}
    if layout in away and not (layout == "snapshots" and relative):
        moved(away[layout], tmp_path / "disk")
    if layout == "alias":
        (tmp_path / "alias").symlink_to(folder)
        folder = tmp_path / "alias"
    assert {"tokenizer.json", "generation_config.json"} <= set(preview(folder, Options()).source.files)


@pytest.mark.parametrize("layout", ["within", "other folder", "file of that name", "up and away"])
def test_what_only_looks_like_the_cache_is_refused(source: Path, tmp_path: Path, layout: str) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "x").write_text("{}")
    (tmp_path / "models--a--b" / "blobs").mkdir(parents=True)
    (tmp_path / "models--a--b" / "other").mkdir()
    (tmp_path / "models--a--b" / "other" / "x").write_text("{}")
    (tmp_path / "blobs").write_text("{}")
    (source / "models--a--b").mkdir()
    (source / "models--a--b" / "blobs").symlink_to(tmp_path / "secret")
    target = {
        "within": "models--a--b/blobs/x",
        "other folder": "../models--a--b/other/x",
        "file of that name": "../blobs",
        "up and away": "../models--a--b/blobs/../../secret/x",
    }
    (source / "tokenizer.json").symlink_to(target[layout])
    with pytest.raises(CheckpointError, match=r"tokenizer\.json is a link"):
        preview(source, Options())


@pytest.mark.parametrize(
    ("changes", "removed", "expected"),
    [
        ({"vision_config": {"hidden_size": 8}}, (), "no vision tensors"),
        ({}, (), ""),
        ({}, ("tokenizer.json",), "no tokenizer.json: "),
        ({}, ("tokenizer.json", "generation_config.json"), "no tokenizer.json and no generation_config.json"),
    ],
)
def test_gaps_are_noted(
    source: Path, tmp_path: Path, changes: dict[str, Any], removed: tuple[str, ...], expected: str
) -> None:
    (source / "tokenizer.json").write_text("{}")
    (source / "config.json").write_text(json.dumps(models.config() | changes))
    for name in removed:
        (source / name).unlink()
    result = RUN.invoke(app, ["convert", str(source), str(tmp_path / "out")])
    report = json.loads((tmp_path / "out" / "dgemma_convert.json").read_text())
    assert [expected in note for note in report["notes"]] == ([True] if expected else [])
    for note in report["notes"]:
        assert note in (tmp_path / "out" / "README.md").read_text()
        assert note in result.stderr
        assert note in RUN.invoke(app, ["convert", str(source), str(tmp_path / "no"), "--dry-run"]).stdout


def test_vision_tensors_are_no_gap(tmp_path: Path) -> None:
    tensors = models.weights() | {"model.encoder.vision_tower.x.weight": torch.ones(2, 2)}
    source = models.hub(tmp_path / "source", tensors, models.config() | {"vision_config": {"hidden_size": 2}})
    assert not [note for note in preview(source, Options()).source.notes if "vision" in note]


EVIL = "evil\x1b[2J\x9b31m\nline\rname"


@pytest.mark.parametrize("options", [[], ["-v"], ["--quiet"]], ids=str)
@pytest.mark.parametrize("place", ["tensor", "dtype", "model_type", "layer", "method", "shard", "file"])
def test_names_do_not_steer_the_terminal(source: Path, tmp_path: Path, place: str, options: list[str]) -> None:
    changes: dict[str, Any] = {}
    if place == "tensor":
        models.write(tmp_path / "evil", models.weights() | {EVIL: torch.ones(2)}, models.config())
        source = tmp_path / "evil"
    elif place == "shard":
        (source / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": f"{EVIL}"}}))
    elif place == "file":
        (source / f"LICENSE{EVIL}").symlink_to("/etc/hosts")
    elif place == "layer":
        changes = models.config(layer_types=[EVIL, EVIL])
    else:
        changes = {"dtype": {"a": EVIL}} if place == "dtype" else {place: EVIL}
        changes = {"quantization_config": {"quant_method": EVIL}} if place == "method" else changes
    (source / "config.json").write_text(json.dumps(models.config() | changes))
    result = RUN.invoke(app, ["convert", str(source), str(tmp_path / "out"), *options])
    assert result.exit_code == 4
    assert not set(result.stderr) & set("\x1b\x9b\r")
    assert options == ["-v"] or result.stderr.count("\n") == 1


def test_notes_do_not_steer_the_terminal(source: Path, tmp_path: Path) -> None:
    tensors = models.weights() | {"a\x1b[2J.weight.k_scale": torch.ones(1)}
    raw = models.config() | {"quantization_config": {"quant_method": "modelopt"}}
    models.write(tmp_path / "evil", tensors, raw)
    result = RUN.invoke(app, ["convert", str(tmp_path / "evil"), str(tmp_path / "out")])
    assert result.exit_code == 0
    assert "k_scale" in result.stderr
    assert "\x1b" not in result.stderr

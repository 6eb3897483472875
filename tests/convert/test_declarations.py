"""What config.json says about quantization is read wherever it stands, and nowhere left standing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dgemma.checkpoint import Checkpoint
from dgemma.errors import CheckpointError
from dgemma_convert import Options, convert, preview
from tests.convert import modelopts, models

PLACES = ("config.json", "text_config")
KEYS = ("quantization", "quantization_config")


def declaring(place: str, key: str, value: Any) -> dict[str, Any]:
    """config.json of the tiny model with a declaration in one place."""
    return models.config(**{key: value}) if place == "text_config" else models.config() | {key: value}


def moved(folder: Path, place: str, key: str) -> Path:
    """The declaration of a converted folder in another place."""
    config = json.loads((folder / "config.json").read_text())
    found = config.pop("quantization")
    (config if place == "config.json" else config[place])[key] = found
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.hub(tmp_path_factory.mktemp("plain") / "source")


@pytest.mark.parametrize("options", [Options(), Options(to="hub"), Options(bits=4, group_size=32)], ids=str)
@pytest.mark.parametrize("method", ["modelopt", "mlx"])
@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", PLACES)
def test_the_result_speaks_of_its_own_only(
    plain: Path, tmp_path: Path, place: str, key: str, method: str, options: Options
) -> None:
    if method == "mlx":
        convert(plain, tmp_path / "source", Options(bits=8, group_size=32))
        source = moved(tmp_path / "source", place, key)
    else:
        tensors = models.unfused(models.weights(), modelopts.encode)
        source = models.write(tmp_path / "source", tensors, declaring(place, key, {"quant_method": "modelopt"}))
    convert(source, tmp_path / "out", options)
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    assert [name for name in KEYS if name in found] == ["quantization"] * (options.to == "mlx")
    assert not [name for name in KEYS if name in found["text_config"]]
    assert json.loads((source / "config.json").read_text())["text_config"].keys() - found["text_config"].keys() == (
        {key} if place == "text_config" else set()
    )


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", PLACES)
def test_running_reads_it_in_the_same_places(plain: Path, tmp_path: Path, place: str, key: str) -> None:
    convert(plain, tmp_path / "packed", Options(bits=4, group_size=32))
    expected = Checkpoint.open(tmp_path / "packed").quantization
    found = Checkpoint.open(moved(tmp_path / "packed", place, key)).quantization
    assert found is not None
    assert found == expected


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("place", PLACES)
def test_what_is_no_object_is_refused(tmp_path: Path, place: str, key: str) -> None:
    source = models.hub(tmp_path / "source", raw=declaring(place, key, "4bit"))
    with pytest.raises(CheckpointError, match=f"{key} is not an object"):
        preview(source, Options())


def test_sections_of_other_parts(tmp_path: Path) -> None:
    raw = models.config() | {"vision_config": {"hidden_size": 8, "quantization_config": {"quant_method": "modelopt"}}}
    convert(models.hub(tmp_path / "source", raw=raw), tmp_path / "out", Options())
    assert json.loads((tmp_path / "out" / "config.json").read_text())["vision_config"] == {"hidden_size": 8}

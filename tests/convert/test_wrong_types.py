"""Every field of a model's configuration with every wrong type: a typed error or acceptance, for running and for
converting."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dgemma.cached import weight_format
from dgemma.checkpoint import Checkpoint
from dgemma.config import GenerationDefaults, ModelConfig
from dgemma.errors import CheckpointError, DgemmaError, UnsupportedError
from dgemma.template import ChatTemplate
from dgemma_convert import Options, convert, preview
from dgemma_convert.report import as_dict
from dgemma_convert.writers import WRITERS
from tests.convert import models

WRONG: tuple[Any, ...] = (None, True, 0, -1, 4.0, 1e400, 10**40, "x", "", [], [1], [[1]], {}, {"a": [1]}, {"0": 5})
QUANTIZATION = {
    "group_size": 32,
    "bits": 4,
    "mode": "affine",
    "model.decoder.layers.0.mlp.up_proj": {"bits": 4, "group_size": 32},
}
FILES: dict[str, dict[str, Any]] = {
    "config.json": models.config(rms_norm_eps=1e-6, per_layer_config={"0": {"head_dim": 32, "num_key_value_heads": 1}})
    | {"quantization": QUANTIZATION},
    "generation_config.json": models.GENERATION,
    "tokenizer_config.json": {
        "bos_token": {"content": "<bos>"},
        "chat_template": [{"name": "default", "template": ""}],
    },
    "model.safetensors.index.json": {"metadata": {}, "weight_map": {"x": "model.safetensors"}},
}
FILES["config.json"] |= {"quantization_config": {"quant_method": "mlx", "config_groups": {"g": {"weights": {}}}}}


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place in a JSON value."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, each in inner:
        yield from places(each, (*path, key))


def changed(raw: Any, path: tuple[Any, ...], value: Any) -> Any:
    """`raw` with another value at a place."""
    if not path:
        return value
    found = copy.deepcopy(raw)
    holder = found
    for key in path[:-1]:
        holder = holder[key]
    holder[path[-1]] = value
    return found


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("types")
    source = models.hub(folder / "source")
    convert(source, folder / "packed", Options(bits=4, group_size=32, recipe="uniform"))
    return folder / "packed"


def read_everything(folder: Path) -> None:
    """What running and converting the model read of its configuration."""
    weight_format(folder)
    config = ModelConfig.from_folder(folder)
    GenerationDefaults.from_folder(folder)
    Checkpoint.open(folder).plan(config)


def plan_everything(folder: Path) -> None:
    """What converting it decides."""
    for options in (Options(), Options(to="hub", dtype="bf16"), Options(bits=8)):
        plan = preview(folder, options)
        as_dict(plan)
        json.dumps(WRITERS[options.to].config(plan))


def test_right_types(sound: Path, tmp_path: Path) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    for name in ("config.json", "generation_config.json"):
        (tmp_path / name).write_text(json.dumps(FILES[name]))
    read_everything(tmp_path)
    plan_everything(tmp_path)


CASES = [(name, path) for name, raw in FILES.items() for path in places(raw)]


@pytest.mark.parametrize(
    ("name", "path"), CASES, ids=lambda value: "/".join(map(str, value)) if isinstance(value, tuple) else value
)
def test_wrong_types(sound: Path, tmp_path: Path, name: str, path: tuple[Any, ...]) -> None:
    shutil.copytree(sound, tmp_path, dirs_exist_ok=True)
    (tmp_path / "chat_template.jinja").unlink()
    refused = 0
    for value in WRONG:
        (tmp_path / name).write_text(json.dumps(changed(FILES[name], path, value)))
        for reader in (read_everything, plan_everything, ChatTemplate.from_folder):
            try:
                reader(tmp_path)
            except DgemmaError as error:
                assert isinstance(error, UnsupportedError)
                assert len(error.line()) < 5000
                refused += 1
    assert refused or path


@pytest.mark.parametrize("key", ["quantization", "quantization_config"])
@pytest.mark.parametrize("value", ["4bit", [4], 4, True], ids=str)
def test_a_description_that_is_none(tmp_path: Path, key: str, value: Any) -> None:
    """What running refuses converting does not ignore."""
    folder = models.hub(tmp_path / "source", raw=models.config() | {key: value})
    for reader in (read_everything, plan_everything):
        with pytest.raises(CheckpointError, match="is not an object"):
            reader(folder)

"""A model folder in the formats that other tools publish, as input of the converter."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import gguf
from safetensors.torch import load_file

from tests.convert import compressed, ggufs, modelopts

Maker = Callable[[Path, Path], Path]
_BLOCK = 32
_SETTINGS = {"max_denoising_steps": "eb_max_steps", "t_min": "eb_t_min", "t_max": "eb_t_max"}
_CONTROL, _NORMAL = 3, 1


def as_modelopt(model: Path, target: Path) -> Path:
    """NVFP4 experts one by one, the rest as it is."""
    return _carried(model, modelopts.write(target, _tensors(model), _config(model)))


def as_compressed(case: str, model: Path, target: Path) -> Path:
    """Every linear in the layout of compressed-tensors that `case` names."""
    return _carried(model, compressed.write(target, case, _tensors(model), _config(model)))


def as_gguf(kind: ggufs.Kind, model: Path, target: Path) -> Path:
    """One file, every matrix whose rows fill whole blocks in `kind`; made by the gguf package."""
    generation = json.loads((model / "generation_config.json").read_text())
    settings = {short: generation[name] for name, short in _SETTINGS.items()}
    settings["eb_entropy_bound"] = generation["sampler_config"]["entropy_bound"]
    target.parent.mkdir(parents=True, exist_ok=True)
    return ggufs.write(
        target.with_suffix(".gguf"),
        lambda name: kind,
        _config(model),
        settings,
        tensors=_tensors(model),
        tokenizer=partial(_tokenizer, model),
    )


MAKERS: dict[str, Maker] = {
    "modelopt NVFP4": as_modelopt,
    "compressed NVFP4": partial(as_compressed, "nvfp4"),
    "compressed FP8 per channel": partial(as_compressed, "fp8-channel"),
    "compressed FP8 per tensor": partial(as_compressed, "fp8-tensor"),
    "compressed int4 g32": partial(as_compressed, "int4"),
    "compressed int4 asymmetric": partial(as_compressed, "int4-asymmetric"),
    "compressed int8 g32": partial(as_compressed, "int8"),
    **{f"GGUF {kind.name}": partial(as_gguf, kind) for kind in ggufs.PYTHON_QUANTIZES},
}


def _tensors(model: Path) -> Any:
    return load_file(model / "model.safetensors")


def _config(model: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((model / "config.json").read_text())
    return found


def _carried(model: Path, target: Path) -> Path:
    """`target` with the tokenizer, template and sampler settings of `model`."""
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"):
        (target / name).write_bytes((model / name).read_bytes())
    return target


def _tokenizer(model: Path, writer: gguf.GGUFWriter, size: int) -> None:
    """The tokenizer of one character a token, spelled as Gemma's: spaces are U+2581."""
    stored = json.loads((model / "tokenizer.json").read_text())
    ids = stored["model"]["vocab"] | {each["content"]: each["id"] for each in stored["added_tokens"]}
    special = {each["id"] for each in stored["added_tokens"]}
    tokens = sorted(ids, key=lambda token: ids[token])
    if [ids[token] for token in tokens] != list(range(size)):
        raise ValueError(f"{model} has a vocabulary with gaps")
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list([token.replace(" ", "▁") for token in tokens])
    writer.add_token_scores([-1000.0] * size)
    writer.add_token_types([_CONTROL if index in special else _NORMAL for index in range(size)])
    for key, token in {"bos": "<bos>", "eos": "<eos>", "unknown": "<unk>", "padding": "<pad>"}.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", ids[token])
    writer.add_chat_template((model / "chat_template.jinja").read_text())
    writer.add_bool("tokenizer.ggml.add_bos_token", True)

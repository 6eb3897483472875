"""Damaged and malicious files: an error at once, bounded memory, nothing written."""

from __future__ import annotations

import json
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch

from dgemma.errors import DgemmaError, UnsupportedError
from dgemma_convert import Options, convert
from tests.convert import ggufs, modelopts, models

Damage = Callable[[bytearray], None]


def refused(source: Path, target: Path, match: str, **options: str) -> None:
    start = time.process_time()
    with pytest.raises(DgemmaError, match=match):
        convert(source, target, Options(**options))  # type: ignore[arg-type]
    assert time.process_time() - start < 1
    assert not list(target.parent.glob(f"{target.name}*"))


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return ggufs.write(path, lambda name: gguf.GGMLQuantizationType.Q8_0).read_bytes()


def put(offset: int, value: int, kind: str = "<Q") -> Damage:
    return lambda data: struct.pack_into(kind, data, offset, value)


def in_info(name: bytes, field: str, value: int) -> Damage:
    """Overwrite a field of a tensor's entry: its first dimension, its type or its offset."""

    def change(data: bytearray) -> None:
        at = data.index(struct.pack("<Q", len(name)) + name) + 8 + len(name)
        (dimensions,) = struct.unpack_from("<I", data, at)
        places = {
            "size": (at + 4, "<Q"),
            "type": (at + 4 + 8 * dimensions, "<I"),
            "offset": (at + 8 + 8 * dimensions, "<Q"),
        }
        where, kind = places[field]
        struct.pack_into(kind, data, where, value)

    return change


def long_list(data: bytearray) -> None:
    key = b"tokenizer.ggml.token_type"
    at = data.index(key) + len(key)
    struct.pack_into("<Q", data, at + 8, 1 << 60)


@pytest.mark.parametrize(
    ("damage", "match"),
    {
        "tensor count": (put(8, 1 << 50), "claims"),
        "few more tensors": (put(8, 2000), "sound GGUF|unknown type|place|block"),
        "metadata count": (put(16, 1 << 50), "sound GGUF"),
        "long string": (put(24, 1 << 62), "sound GGUF"),
        "long list": (long_list, "list of"),
        "offset past the end": (in_info(b"output_norm.weight", "offset", 1 << 40), "past the end"),
        "overlap": (in_info(b"blk.1.attn_q.weight", "offset", 0), "overlaps"),
        "bomb": (in_info(b"token_embd.weight", "size", 1 << 45), "past the end|overlaps|whole block"),
        "other shape": (in_info(b"output_norm.weight", "size", 32), "instead of"),
        "unknown type": (in_info(b"token_embd.weight", "type", 999), "unknown type"),
        "magic": (put(0, 7, "<I"), "magic"),
        "cut in the header": (lambda data: data.__delitem__(slice(5000, None)), "sound GGUF"),
        "cut in the data": (lambda data: data.__delitem__(slice(-5000, None)), "past the end"),
    }.values(),
)
def test_gguf(sound: bytes, tmp_path: Path, damage: Damage, match: str) -> None:
    data = bytearray(sound)
    damage(data)
    (tmp_path / "m.gguf").write_bytes(data)
    refused(tmp_path / "m.gguf", tmp_path / "out", match)


def test_gguf_scales_that_are_not_numbers(tmp_path: Path) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: gguf.GGMLQuantizationType.Q8_0)
    tensor = next(each for each in gguf.GGUFReader(path).tensors if each.name == "blk.1.ffn_down_exps.weight")
    data = bytearray(path.read_bytes())
    data[tensor.data_offset : tensor.data_offset + 2] = np.float16(np.nan).tobytes()
    path.write_bytes(data)
    refused(path, tmp_path / "out", "not finite")
    refused(path, tmp_path / "out", "not finite", to="hub")


def test_safetensors_header_of_100_mb(tmp_path: Path) -> None:
    folder = models.hub(tmp_path / "source")
    (folder / "model.safetensors").write_bytes((100_000_000).to_bytes(8, "little") + b'{"a":')
    os.truncate(folder / "model.safetensors", 100_000_100)
    refused(folder, tmp_path / "out", "not a safetensors file")


def test_shape_that_would_fill_the_memory(tmp_path: Path) -> None:
    folder = models.hub(tmp_path / "source")
    raw = (folder / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    header["model.decoder.norm.weight"]["shape"] = [1 << 30, 1 << 30]
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
    refused(folder, tmp_path / "out", "but holds")


@pytest.mark.parametrize("part", ["weight_scale", "weight_scale_2"])
def test_nvfp4_scales_that_are_not_numbers(tmp_path: Path, part: str) -> None:
    raw = models.config() | {"quantization_config": {"quant_method": "modelopt"}}
    tensors = models.unfused(models.weights(), modelopts.encode)
    name = f"model.decoder.layers.1.experts.3.down_proj.{part}"
    tensors[name] = torch.full(tensors[name].shape, torch.nan).to(tensors[name].dtype)
    refused(
        models.write(tmp_path / "source", tensors, raw),
        tmp_path / "out",
        "down_proj: (A|The global) .* not (a number|finite)",
    )


def test_weights_that_are_not_numbers_are_not_quantized(tmp_path: Path) -> None:
    tensors = models.weights()
    tensors["model.decoder.layers.1.experts.down_proj"][0, 0, 0] = torch.inf
    refused(models.hub(tmp_path / "source", tensors), tmp_path / "out", "not finite", recipe="default")


def test_a_missing_tensor(tmp_path: Path) -> None:
    tensors = models.weights()
    del tensors["model.decoder.layers.0.router.scale"]
    refused(models.hub(tmp_path / "source", tensors), tmp_path / "out", "1 missing")


def test_a_stored_head_that_differs(tmp_path: Path) -> None:
    tensors = models.weights()
    tensors["lm_head.weight"] = tensors["model.decoder.embed_tokens.weight"] + 1
    refused(models.hub(tmp_path / "source", tensors), tmp_path / "out", "with which it is tied")


@pytest.mark.parametrize("method", ["awq", "gptq", "bitsandbytes", "auto-round", "torchao"])
def test_foreign_methods_are_named_with_a_way_out(tmp_path: Path, method: str) -> None:
    folder = models.hub(tmp_path / "source", raw=models.config() | {"quantization_config": {"quant_method": method}})
    with pytest.raises(UnsupportedError, match=method) as caught:
        convert(folder, tmp_path / "out", Options())
    assert "--bits 4" in caught.value.remedy


@pytest.mark.parametrize(
    "declared",
    [
        {"quantization": {"group_size": 64, "bits": 4}},
        {"quantization_config": {"group_size": 64, "bits": 4}},
        {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}},
        {"quantization_config": {"quant_method": "compressed-tensors", "format": "pack-quantized"}},
        {"hf_quant_config.json": {"quantization": {"quant_algo": "NVFP4"}}},
    ],
    ids=str,
)
@pytest.mark.parametrize("experts", ["stacked", "one by one"])
def test_an_unquantized_model_that_says_otherwise(tmp_path: Path, declared: dict[str, Any], experts: str) -> None:
    tensors = models.weights()
    if experts == "one by one":
        tensors = models.unfused(tensors, lambda path, matrix: {f"{path}.weight": matrix})
    source = models.hub(tmp_path / "source", tensors, models.config() | declared)
    if "hf_quant_config.json" in declared:
        (source / "hf_quant_config.json").write_text(json.dumps(declared["hf_quant_config.json"]))
    report = convert(source, tmp_path / "out", Options())
    assert any("calls itself quantized" in note for note in report["notes"])
    assert report["totals"]["quantized_share_of_bytes"] == 0


def test_scales_without_a_description(tmp_path: Path) -> None:
    folder = models.hub(tmp_path / "source")
    convert(folder, tmp_path / "packed", Options(bits=4))
    config = json.loads((tmp_path / "packed" / "config.json").read_text())
    del config["quantization"]
    (tmp_path / "packed" / "config.json").write_text(json.dumps(config))
    refused(tmp_path / "packed", tmp_path / "out", "does not explain")

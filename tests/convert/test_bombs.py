"""Files made to exhaust a machine: an error after a moment, little memory, nothing written."""

from __future__ import annotations

import json
import os
import shutil
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

import gguf
import pytest

from dgemma_convert.layout import lay_out
from dgemma_convert.plan import Output
from tests.convert import bounded, ggufs, models

SECONDS, GROWTH = 3, 500_000_000
ARCH = "diffusion-gemma"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="limits as Linux has them")


def shard(header: Callable[[], bytes]) -> Callable[[Path], None]:
    """Another safetensors file; what is large is made when it is needed."""

    def change(folder: Path) -> None:
        raw = header()
        (folder / "model.safetensors").write_bytes(len(raw).to_bytes(8, "little") + raw)

    return change


def entry(shape: object = (), start: int = 0, stop: int = 0) -> bytes:
    return json.dumps({"dtype": "F32", "shape": shape, "data_offsets": [start, stop]}).encode()


def file(name: str, data: Callable[[], bytes], size: int = 0) -> Callable[[Path], None]:
    """Another file, with a hole behind its data up to `size` bytes."""

    def change(folder: Path) -> None:
        (folder / name).write_bytes(data())
        if size:
            os.truncate(folder / name, size)

    return change


def layers(count: int) -> bytes:
    changes = {"num_hidden_layers": count, "layer_types": ["sliding_attention"] * count}
    return json.dumps(models.config(**changes)).encode()


def joined(count: int, value: bytes) -> bytes:
    return b"{" + b",".join(b'"%d":%b' % (each, value) for each in range(count)) + b"}"


FOLDERS: dict[str, Callable[[Path], None]] = {
    "a million dimensions": shard(lambda: b'{"x":' + entry([10**18] * 1_000_000, 0, 4) + b"}"),
    "large numbers": shard(lambda: b'{"x":' + entry([int("9" * 4000)] * 7, 0, 4) + b"}"),
    "a long dtype": shard(lambda: b'{"x":' + entry().replace(b"F32", b"F" + b"9" * 20_000_000) + b"}"),
    "a long name": shard(lambda: b'{"' + b"x" * 30_000_000 + b'":' + entry() + b"}"),
    "empty lists": shard(lambda: b'{"x":[' + b"[]," * 10_000_000 + b"[]]}"),
    "many empty tensors": shard(lambda: joined(500_000, entry([0]))),
    "as many as may be": shard(lambda: joined(160_000, entry([0]))),
    "objects in objects": shard(lambda: b'{"x":' * 5_000_000),
    "a large config.json": file("config.json", lambda: b"{", 100_000_000),
    "empty lists in config.json": file("config.json", lambda: b'{"x":[' + b"[]," * 10_000_000 + b"[]]}"),
    "deep config.json": file("config.json", lambda: b"[" * 200_000),
    "many layers": file("config.json", lambda: layers(400_000)),
    "an index of a million": file(
        "model.safetensors.index.json", lambda: b'{"weight_map":' + joined(1_100_000, b'"x"') + b"}"
    ),
    "an index of many shards": file(
        "model.safetensors.index.json", lambda: b'{"weight_map":' + joined(10, b'"\\u0000"') + b"}"
    ),
}


def key(name: str, kind: int, value: bytes) -> bytes:
    """A metadata entry."""
    return struct.pack("<Q", len(name)) + name.encode() + struct.pack("<I", kind) + value


def header(*entries: bytes, tensors: int = 0, rest: bytes = b"") -> bytes:
    """A GGUF file."""
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, len(entries)) + b"".join(entries) + rest


FILES: dict[str, Callable[[], bytes]] = {
    "empty strings": lambda: header(key("x", 9, struct.pack("<IQ", 8, 3_900_000) + bytes(8 * 3_900_000))),
    "lists of empty strings": lambda: header(
        *(key(f"{n}", 9, struct.pack("<IQ", 8, 900_000) + bytes(7_200_000)) for n in range(5))
    ),
    "lists of numbers": lambda: header(
        *(key(f"{n}", 9, struct.pack("<IQ", 0, 3_000_000) + bytes(3_000_000)) for n in range(9))
    ),
    "a list of lists": lambda: header(key("x", 9, struct.pack("<IQIQ", 9, 1 << 30, 9, 1 << 30) + bytes(1000))),
    "a deep list": lambda: header(key("x", 9, struct.pack("<IQ", 9, 1) * 1_000_000)),
    "a list of empty lists": lambda: header(key("x", 9, struct.pack("<IQ", 9, 1_000_000) + bytes(12_000_000))),
    "lists of empty lists": lambda: header(
        *(key(f"{n}", 9, struct.pack("<IQ", 9, 90_000) + bytes(12 * 90_000)) for n in range(50))
    ),
    "a long string": lambda: header(key("x", 8, struct.pack("<Q", 1 << 38))),
    "no alignment": lambda: header(key("general.alignment", 4, struct.pack("<I", 0))),
    "a wide alignment": lambda: header(key("general.alignment", 4, struct.pack("<I", 1 << 31))),
    "an alignment of text": lambda: header(key("general.alignment", 8, struct.pack("<Q", 1) + b"8")),
    "many dimensions": lambda: header(tensors=1, rest=struct.pack("<QcI", 1, b"x", 1 << 31)),
    "many nameless tensors": lambda: header(tensors=99_000, rest=bytes(24 * 99_000)),
    "an unknown type": lambda: header(key("x", 77, bytes(8))),
}


def layered(path: Path, count: int) -> None:
    """One number of key/value heads for very many layers."""

    def settings(writer: gguf.GGUFWriter, size: int) -> None:
        ggufs.vocabulary(writer, size)
        whole = gguf.GGUFValueType.UINT32
        writer.kv_data[0][f"{ARCH}.block_count"] = gguf.gguf_writer.GGUFValue(count, whole)
        writer.kv_data[0][f"{ARCH}.attention.head_count_kv"] = gguf.gguf_writer.GGUFValue(2, whole)

    ggufs.write(path, lambda name: gguf.GGMLQuantizationType.F16, tokenizer=settings)


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bounded.Ended]:
    place = tmp_path_factory.mktemp("bombs")
    sound = models.hub(place / "sound")
    cases: dict[str, list[str]] = {}
    for name, change in FOLDERS.items():
        shutil.copytree(sound, place / name)
        change(place / name)
        cases[name] = [name, f"{name}.out"]
    for name, data in FILES.items():
        (place / f"{name}.gguf").write_bytes(data())
        cases[name] = [f"{name}.gguf", f"{name}.out"]
    os.truncate(place / "a long string.gguf", 1 << 39)
    layered(place / "many blocks.gguf", 400_000_000)
    cases["many blocks"] = ["many blocks.gguf", "many blocks.out"]
    found = bounded.conversions(cases, place, SECONDS, GROWTH)
    assert not list(place.glob("*.out*"))
    shutil.rmtree(place)
    return found


@pytest.mark.parametrize("name", [*FOLDERS, *FILES, "many blocks"])
def test_ends_at_once(ended: dict[str, bounded.Ended], name: str) -> None:
    assert (ended[name].code, ended[name].said.count("\n")) == (4, 1), ended[name]
    assert len(ended[name].said) < 5000


def test_the_limits_can_be_felt(tmp_path: Path) -> None:
    """A sound conversion ends well under the same limits, and is killed by narrower ones."""
    source = models.hub(tmp_path / "source")
    assert bounded.conversions({"a": [str(source), "out"]}, tmp_path, SECONDS, GROWTH)["a"].code == 0
    assert bounded.conversions({"b": [str(source), "out2"]}, tmp_path, SECONDS, 3_000_000)["b"].code != 0


def test_laying_out_takes_a_moment_a_tensor() -> None:
    outputs = [Output("weight", str(each), "F32", (1,)) for each in range(40_000)]
    start = time.process_time()
    (shard,) = lay_out(outputs, "pt")
    assert len(shard.places) == 40_000
    assert time.process_time() - start < 10

"""Hostile and damaged weight files: each ends in a CheckpointError that names the file."""

import contextlib
import json
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dgemma.checkpoint import Checkpoint
from dgemma.errors import CheckpointError
from dgemma.shards import read_shard


def pack(header: object, data: bytes = b"") -> bytes:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw)) + raw + data


def tensor(start: int, stop: int, shape: object = None, dtype: str = "U8") -> dict:
    return {"dtype": dtype, "shape": [stop - start] if shape is None else shape, "data_offsets": [start, stop]}


GOOD = pack({"__metadata__": {"a": "b"}, "x": tensor(0, 4), "y": tensor(4, 8, [2], "BF16")}, bytes(8))
BAD = {
    "empty": (b"", "empty"),
    "short": (b"abc", "not a safetensors file"),
    "git-lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git-lfs pointer"),
    "huge header": (struct.pack("<Q", 1 << 60) + b"{}", "not a safetensors file"),
    "header beyond the file": (struct.pack("<Q", 100) + b"{}", "truncated"),
    "no JSON": (pack(b"{not json"), "damaged safetensors header"),
    "not an object": (pack([1]), "damaged safetensors header"),
    "no UTF-8": (pack(b'{"\xff": 1}'), "damaged safetensors header"),
    "deep": (pack(b"[" * 100_000), "damaged safetensors header"),
    "repeated name": (pack(b'{"x": 1, "x": 2}'), "twice"),
    "truncated": (GOOD[:-1], "truncated"),
    "trailing": (GOOD + b"x", "belong to no tensor"),
    "overlap": (pack({"x": tensor(0, 4), "y": tensor(2, 6)}, bytes(6)), "overlaps"),
    "hole": (pack({"x": tensor(0, 4), "y": tensor(6, 8)}, bytes(8)), "hole"),
    "backwards": (pack({"x": tensor(4, 0, [0])}, bytes(4)), "holds -4 bytes"),
    "negative": (pack({"x": tensor(-4, 0, [4])}, bytes(4)), "malformed"),
    "wrong size": (pack({"x": tensor(0, 4, [5])}, bytes(4)), "holds 4 bytes"),
    "bad shape": (pack({"x": tensor(0, 4, [True, 4])}, bytes(4)), "malformed"),
    "no entry": (pack({"x": None}), "malformed"),
    "unknown dtype": (pack({"x": tensor(0, 4, dtype="Q4_K")}, bytes(4)), "unknown dtype"),
}


def test_sound_file(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(GOOD)
    found = read_shard(path)
    assert (found["y"].dtype, found["y"].shape, found["y"].nbytes) == ("BF16", (2,), 4)
    assert found["y"].stop == len(GOOD)


@pytest.mark.parametrize("name", BAD)
def test_damage_is_named(name: str, tmp_path: Path) -> None:
    raw, message = BAD[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_shard(path)
    assert "model.safetensors" in str(caught.value) and "\n" not in caught.value.line()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, len(GOOD)), at=st.integers(0, len(GOOD) - 1), byte=st.integers(0, 255))
def test_random_damage_never_crashes(tmp_path: Path, cut: int, at: int, byte: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes((GOOD[:at] + bytes([byte]) + GOOD[at + 1 :])[:cut])
    with contextlib.suppress(CheckpointError):
        read_shard(path)


def shard(folder: Path, index: object, **shards: bytes) -> Path:
    (folder / "model.safetensors").unlink(missing_ok=True)
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    for name, raw in shards.items():
        (folder / f"{name}.safetensors").write_bytes(raw)
    return folder


A, B = pack({"x": tensor(0, 1)}, b"x"), pack({"y": tensor(0, 1)}, b"y")


def test_shards_are_read_in_order(folder: Path) -> None:
    checkpoint = Checkpoint.open(shard(folder, {"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}}, a=A, b=B))
    assert checkpoint.names == ("x", "y") and checkpoint.nbytes == 2
    assert [path.name for path in checkpoint.shards] == ["a.safetensors", "b.safetensors"]
    assert checkpoint.info("y").shard.name == "b.safetensors"


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"x": "a.safetensors", "z": "c.safetensors"}, "c.safetensors is missing"),
        ({"x": "a.safetensors", "z": "b.safetensors"}, "does not hold z"),
        ({"x": "../a.safetensors"}, "outside the folder"),
        ({"x": "/a.safetensors"}, "outside the folder"),
        ({"x": 3}, "outside the folder"),
        ({"x": "a.safetensors", "y": "d.safetensors"}, "repeats x"),
        ({}, "no weight_map"),
    ],
)
def test_bad_index(folder: Path, weight_map: dict, message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpoint.open(shard(folder, {"weight_map": weight_map}, a=A, b=B, d=A))


def test_no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match="neither"):
        Checkpoint.open(folder)

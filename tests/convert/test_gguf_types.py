"""Every metadata field of a GGUF file with every wrong type: a typed error, or acceptance, never another exception."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Any

import gguf
import pytest

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, preview
from dgemma_convert.readers import gguf as reader
from dgemma_convert.readers.ggufheader import Header, read_header
from tests.convert import ggufs

WRONG: tuple[Any, ...] = (
    *(True, 0, -1, 1 << 60, 1.5, math.nan, math.inf, 1e300, "", "x", [], [1], [[]]),
    *([1] * 128, ["a"] * 128, ["zz qq"], [True, 2.0], [-1, 1], ["a b", "b"], ["c b"]),
)


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Header:
    settings = {"eb_max_steps": 12, "eb_t_min": 0.3, "eb_t_max": 0.9, "eb_stability_threshold": 1}
    settings |= {"eb_entropy_bound": 0.2, "eb_confidence_threshold": 0.1}
    path = tmp_path_factory.mktemp("gguf") / "m.gguf"
    return read_header(ggufs.write(path, lambda name: gguf.GGMLQuantizationType.F16, settings=settings))


def planned(header: Header, monkeypatch: pytest.MonkeyPatch, fields: dict[str, Any]) -> None:
    monkeypatch.setattr(reader, "read_header", lambda path: dataclasses.replace(header, fields=fields))
    preview(header.path, Options())


def test_wrong_types(header: Header, monkeypatch: pytest.MonkeyPatch) -> None:
    planned(header, monkeypatch, dict(header.fields))
    for key in header.fields:
        refused = 0
        for value in WRONG:
            try:
                planned(header, monkeypatch, {**header.fields, key: value})
            except UnsupportedError:
                refused += 1
        assert (
            refused
            or key.startswith(("general.", "tokenizer.ggml.scores", "tokenizer.ggml.add_bos"))
            or (key.endswith("_token_id") or key == "tokenizer.chat_template")
        ), key


@pytest.mark.parametrize("key", ["tokenizer.ggml.merges", "tokenizer.ggml.tokens", "diffusion-gemma.block_count"])
def test_the_field_is_named(header: Header, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    with pytest.raises(UnsupportedError, match=key):
        planned(header, monkeypatch, {**header.fields, key: [1.5]})


def test_written_and_read(tmp_path: Path, header: Header) -> None:
    """The header reads as the gguf package reads it."""
    library = gguf.GGUFReader(header.path)
    theirs = {name: field.contents() for name, field in library.fields.items() if not name.startswith("GGUF.")}
    assert theirs == header.fields
    places = {each.name: (each.data_offset, each.n_bytes) for each in library.tensors}
    assert places == {name: (each.start, each.nbytes) for name, each in header.tensors.items()}


def nested(path: Path, key: str, value: Any) -> Path:
    """The model with a list of lists in its metadata."""

    def settings(writer: gguf.GGUFWriter, size: int) -> None:
        ggufs.vocabulary(writer, size)
        entry = gguf.gguf_writer.GGUFValue(value, gguf.GGUFValueType.ARRAY)
        writer.kv_data[0][key] = entry

    return ggufs.write(path, lambda name: gguf.GGMLQuantizationType.F16, tokenizer=settings)


@pytest.mark.parametrize("value", [[[1, 2], [3]], [["a"], ["b", "c"]], [[[1.5]], [[2.5], [3.5]]]], ids=str)
def test_lists_of_lists(tmp_path: Path, value: Any) -> None:
    """A file may carry them for others; where the model needs the key they are of the wrong type."""
    preview(nested(tmp_path / "m.gguf", "general.extra", value), Options())
    assert read_header(tmp_path / "m.gguf").fields["general.extra"] == value
    for key in ("tokenizer.ggml.merges", "diffusion-gemma.attention.head_count_kv", "diffusion-gemma.block_count"):
        with pytest.raises(UnsupportedError, match=key):
            preview(nested(tmp_path / f"{key}.gguf", key, value), Options())


@pytest.mark.parametrize(("depth", "width"), [(9, 1), (1, 100_001), (2, 50_001)])
def test_lists_of_lists_have_bounds(tmp_path: Path, depth: int, width: int) -> None:
    value: Any = [1]
    for _ in range(depth):
        value = [value] * (width if depth < 3 else 1)
        width = 2 if depth < 3 else 1
    with pytest.raises(UnsupportedError, match="has a list of"):
        preview(nested(tmp_path / "m.gguf", "general.extra", value), Options())

"""Files that are changed in place."""

from __future__ import annotations

import codecs

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgemma.errors import UsageError
from dgemma.textfile import TextFile


@given(st.one_of(st.binary(max_size=60), st.text(max_size=30).map(str.encode)))
def test_bytes_come_back(data: bytes) -> None:
    try:
        file = TextFile.of(data)
    except UsageError:
        return
    assert file.encode(file.text) == data


@pytest.mark.parametrize(
    ("data", "encoding", "text"),
    [
        ("é€\r\n".encode(), "utf-8", "é€\r\n"),
        (codecs.BOM_UTF8 + b"a\n", "utf-8", "a\n"),
        (codecs.BOM_UTF16_LE + "é\n".encode("utf-16-le"), "utf-16-le", "é\n"),
        (b"caf\xe9\n", "latin-1", "café\n"),
    ],
)
def test_encodings(data: bytes, encoding: str, text: str) -> None:
    file = TextFile.of(data)
    assert (file.encoding, file.text) == (encoding, text) and file.encode(text) == data


def test_what_an_encoding_lacks_is_an_error() -> None:
    with pytest.raises(UsageError, match=r"latin-1.*'€'"):
        TextFile.of(b"caf\xe9").encode("€")
    with pytest.raises(UsageError, match="not a text"):
        TextFile.of(b"\x00\xff\x00")


def test_newlines_of_generated_text() -> None:
    assert TextFile.of(b"a\r\nb\r\nc\n").adapt("x\ny") == "x\r\ny"
    assert TextFile.of(b"a\nb").adapt("x\r\ny") == "x\ny"

"""Files that are changed in place."""

from __future__ import annotations

import codecs
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dgemma import textfile
from dgemma.errors import DgemmaError, UsageError
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
        (codecs.BOM_UTF16_BE + "é\n".encode("utf-16-be"), "utf-16-be", "é\n"),
        (codecs.BOM_UTF32_LE + "é\n".encode("utf-32-le"), "utf-32-le", "é\n"),
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


@pytest.mark.parametrize(
    ("data", "newline"), [(b"", "\n"), (b"a\nb", "\n"), (b"a\r\nb\r\nc\n", "\r\n"), (b"a\rb\rc", "\r")]
)
def test_newlines_of_generated_text(data: bytes, newline: str) -> None:
    file = TextFile.of(data)
    assert file.newline == newline and file.adapt("x\ny\r\nz") == f"x{newline}y{newline}z"


def test_replacing_keeps_permissions_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "file.txt", tmp_path / "link.txt"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target.name)
    textfile.replace(link, textfile.read(link), "new")
    assert target.read_bytes() == b"new" and target.stat().st_mode & 0o7777 == 0o640 and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "link.txt"]


def test_a_failed_replacement_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    target.write_bytes(b"old")

    def fail(self: Path, other: Path) -> None:
        raise OSError("disk")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(DgemmaError, match="disk"):
        textfile.replace(target, textfile.read(target), "new")
    assert target.read_bytes() == b"old" and [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_file_that_others_changed_or_removed_is_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "file.txt"
    target.write_bytes(b"old")
    file = textfile.read(target)
    target.write_bytes(b"theirs")
    with pytest.raises(DgemmaError, match="has changed in the meantime"):
        textfile.replace(target, file, "new")
    assert target.read_bytes() == b"theirs"
    target.unlink()
    with pytest.raises(DgemmaError, match="cannot be changed: No such file"):
        textfile.replace(target, file, "new")
    assert list(tmp_path.iterdir()) == []


def test_what_may_not_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    target.write_bytes(b"old")
    textfile.check_replaceable(target)
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(UsageError, match="read-only"):
        textfile.check_replaceable(target)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, tmp_path, Path("/dev/null")):
        with pytest.raises(UsageError, match="no file that could be changed"):
            textfile.check_replaceable(path)

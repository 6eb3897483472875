"""Files that are written: in one step, with the permissions they should have."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from dgemma.errors import UsageError, WriteError
from dgemma.outputs import check_output, write_file


def test_replacing_keeps_permissions_and_links(tmp_path: Path) -> None:
    target, link = tmp_path / "file.txt", tmp_path / "link.txt"
    target.write_bytes(b"old")
    target.chmod(0o640)
    link.symlink_to(target)
    write_file(link, b"new")
    assert target.read_bytes() == b"new" and target.stat().st_mode & 0o7777 == 0o640 and link.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file.txt", "link.txt"]


def test_a_failed_replacement_leaves_the_file_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.txt"
    target.write_bytes(b"old")

    def fail(self: Path, other: Path) -> None:
        raise OSError(errno.EIO, "disk")

    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(WriteError, match="disk"):
        write_file(target, b"new")
    assert target.read_bytes() == b"old" and [path.name for path in tmp_path.iterdir()] == ["file.txt"]


def test_a_new_file_obeys_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", b"new")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_check_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("x")
    check_output(tmp_path / "output", tmp_path / "input", tmp_path / "missing")
    assert [path.name for path in tmp_path.iterdir()] == ["input"]
    with pytest.raises(UsageError, match="is an input"):
        check_output(tmp_path / "input", tmp_path / "input")
    for wrong in (tmp_path, tmp_path / "no" / "file", tmp_path / "input" / "file"):
        with pytest.raises(WriteError, match="cannot be written"):
            check_output(wrong)

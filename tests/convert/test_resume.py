"""Killed anywhere and taken up again, a conversion ends byte for byte as an undisturbed one."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from dgemma.errors import DgemmaError, UsageError
from dgemma_convert import Options, convert, layout
from tests.convert import models
from tests.convert.children import contents

OPTIONS = Options(bits=4)


class Killed(BaseException):
    """Stands for a signal: nothing gets to clean up."""


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models.hub(tmp_path_factory.mktemp("hub") / "source")


def test_twenty_kills(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source, tmp_path / "whole", OPTIONS)
    expected = contents(tmp_path / "whole")
    total = Faults(monkeypatch).count(lambda: convert(source, tmp_path / "counted", OPTIONS))
    draw = random.Random(0)
    for round_ in range(20):
        target = tmp_path / f"target{round_}"
        with pytest.raises(Killed):
            Faults(monkeypatch).at(draw.randrange(total), lambda t=target: convert(source, t, OPTIONS))
        assert not target.exists()
        convert(source, target, OPTIONS, resume=True)
        assert contents(target) == expected


def test_killed_again_and_again(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    convert(source, tmp_path / "whole", OPTIONS)
    for call in (30, 40, 20, 50):
        with pytest.raises(Killed):
            Faults(monkeypatch).at(call, lambda: convert(source, tmp_path / "target", OPTIONS, resume=True))
    convert(source, tmp_path / "target", OPTIONS, resume=True)
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


def test_a_real_kill(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "whole", OPTIONS)
    child = os.fork()
    if child == 0:
        layout.Files.write = lambda self, name, offset, array: os.kill(os.getpid(), 9)  # type: ignore[method-assign]
        convert(source, tmp_path / "target", OPTIONS)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -9
    assert not (tmp_path / "target").exists()
    convert(source, tmp_path / "target", OPTIONS, resume=True)
    assert contents(tmp_path / "target") == contents(tmp_path / "whole")


def test_other_flags_are_refused(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(Killed):
        Faults(monkeypatch).at(40, lambda: convert(source, tmp_path / "target", OPTIONS))
    with pytest.raises(UsageError, match="unfinished"):
        convert(source, tmp_path / "target", OPTIONS)
    with pytest.raises(UsageError, match="other flags"):
        convert(source, tmp_path / "target", Options(bits=8), resume=True)
    convert(source, tmp_path / "target", OPTIONS, resume=True)


def test_existing_targets(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "target", OPTIONS)
    with pytest.raises(UsageError, match="exists already"):
        convert(source, tmp_path / "target", OPTIONS)
    assert convert(source, tmp_path / "target", OPTIONS, resume=True) == report


def test_a_full_disk_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def pwrite(handle: int, data: bytes, offset: int) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dgemma_convert.layout.os.pwrite", pwrite)
    with pytest.raises(DgemmaError, match="disk is full"):
        convert(source, tmp_path / "target", OPTIONS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("free", [0, 1000, 60_000_000])
def test_room_is_checked_before(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    usage = type("Usage", (), {"free": free})
    monkeypatch.setattr("shutil.disk_usage", lambda path: usage)
    with pytest.raises(DgemmaError, match=rf"{tmp_path} has {free / 1e6:.1f} MB free, the result needs 6\d\.\d MB\."):
        convert(source, tmp_path / "a" / "b" / "target", OPTIONS)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kept", [False, True], ids=["new folders", "old folders"])
@pytest.mark.parametrize("error", [TypeError, ZeroDivisionError, MemoryError, OSError, DgemmaError], ids=str)
@pytest.mark.parametrize("place", ["layout.Files.write", "journal.Journal.finish", "conversion._describe"])
def test_no_error_leaves_anything(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, error: type[Exception], kept: bool
) -> None:
    def fail(*arguments: object) -> None:
        raise error("wrong")

    if kept:
        (tmp_path / "a" / "b").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr(f"dgemma_convert.{place}", fail)
    with pytest.raises(DgemmaError if error is OSError else error):
        convert(source, tmp_path / "a" / "b" / "target", OPTIONS)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit], ids=str)
def test_an_interrupt_leaves_what_there_is(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def stop(done: int, total: int, name: str) -> None:
        raise error

    with pytest.raises(error):
        convert(source, tmp_path / "target", OPTIONS, progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["target.partial"]
    convert(source, tmp_path / "target", OPTIONS, resume=True)


def test_a_source_that_shrinks_leaves_nothing(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = models.hub(tmp_path / "broken")
    shard = broken / "model.safetensors"
    size = shard.stat().st_size

    def cut(done: int, total: int, name: str) -> None:
        os.truncate(shard, size // 2)

    with pytest.raises(DgemmaError, match="shorter"):
        convert(broken, tmp_path / "target", OPTIONS, progress=cut)
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


class Faults:
    """Raises `Killed` at a chosen write or journal entry."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls, self.last = 0, -1
        self._patch = monkeypatch

    def count(self, run: object) -> int:
        """How many such places `run` passes."""
        with self._patch.context() as patch:
            self._install(patch)
            run()  # type: ignore[operator]
        return self.calls

    def at(self, call: int, run: object) -> None:
        """Be killed at the place with this number."""
        self.last = call
        self.count(run)

    def _install(self, patch: pytest.MonkeyPatch) -> None:
        from dgemma_convert import conversion, journal

        write, finish, save = layout.Files.write, journal.Journal.finish, conversion._save
        patch.setattr(layout.Files, "write", lambda *args: self._torn(write, args))
        patch.setattr(journal.Journal, "finish", lambda *args: self._passing(finish, args))
        patch.setattr(conversion, "_save", lambda *args: self._passing(save, args))

    def _passing(self, function: object, args: tuple[object, ...]) -> None:
        self._tick()
        function(*args)  # type: ignore[operator]

    def _torn(self, write: object, args: tuple[object, ...]) -> None:
        """Half of the array arrives before the kill."""
        files, name, offset, array = args
        half = array.reshape(-1)[: array.size // 2]  # type: ignore[attr-defined]
        if self.calls == self.last and half.size:
            write(files, name, offset, half)  # type: ignore[operator]
        self._tick()
        write(*args)  # type: ignore[operator]

    def _tick(self) -> None:
        if self.calls == self.last:
            raise Killed
        self.calls += 1

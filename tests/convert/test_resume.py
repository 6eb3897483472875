"""Killed anywhere and taken up again, a conversion ends byte for byte as an undisturbed one."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dgemma.errors import DgemmaError, UsageError
from dgemma_convert import Options, conversion, convert, journal, layout, preview
from tests.convert import models
from tests.convert.children import OPTIONS, Child, contents

WRITES = [0, 1, 2, *(random.Random(0).uniform(0, 100) for _ in range(9)), 98, 99.9]
GROUPS = [1, 50_000, journal.GROUP]


def killing_at(place: int, group: int) -> Callable[[], None]:
    """In a child: SIGKILL in the midst of writing the shards' byte `place`; `group` as the journal's."""

    def setup() -> None:
        done, write = [0], os.pwrite
        journal.GROUP = group

        def pwrite(handle: int, data: memoryview, offset: int) -> int:
            rest = place - done[0]
            done[0] += len(data)
            if rest < len(data):
                write(handle, data[:rest], offset)
                die()
            return write(handle, data, offset)

        os.pwrite = pwrite  # type: ignore[assignment]

    return setup


def die(*arguments: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def killed(*arguments: object, **options: Any) -> None:
    with Child(*arguments, **options) as child:
        assert child.wait() == -signal.SIGKILL


@pytest.mark.parametrize("share", WRITES, ids=lambda share: f"{share:.1f}")
def test_killed_while_writing(source: Path, tmp_path: Path, whole: dict[str, bytes], share: float) -> None:
    place, group = int(len(whole["model.safetensors"]) * share / 100), GROUPS[WRITES.index(share) % len(GROUPS)]
    killed(source, tmp_path / "out", OPTIONS, setup=killing_at(place, group))
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("share", [0, 50, 99])
def test_killed_while_verifying(source: Path, tmp_path: Path, whole: dict[str, bytes], share: int) -> None:
    total = preview(source, OPTIONS).nbytes
    with Child(source, tmp_path / "out", OPTIONS, verify=True, held=total + 1 + total * share // 100) as child:
        child.reached()
        child.kill()
    assert not (tmp_path / "out").exists()
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


def dying(owner: object, name: str) -> Callable[[], None]:
    return lambda: setattr(owner, name, die)


PLACES = {
    "before the journal": dying(Path, "replace"),
    "before the settings": dying(conversion, "_describe"),
    "before the card": dying(conversion, "card"),
    "before the journal goes": dying(journal.Journal, "remove"),
    "before the name": dying(Path, "rename"),
}


@pytest.mark.parametrize("place", PLACES)
def test_killed_between(source: Path, tmp_path: Path, whole: dict[str, bytes], place: str) -> None:
    killed(source, tmp_path / "out", OPTIONS, setup=PLACES[place])
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("group", GROUPS)
def test_killed_again_and_again(source: Path, tmp_path: Path, whole: dict[str, bytes], group: int) -> None:
    size = len(whole["model.safetensors"])
    for share in (0.3, 0.4, 0.2, 0.25):
        killed(source, tmp_path / "out", OPTIONS, resume=True, setup=killing_at(int(size * share), group))
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


def test_what_is_noted_is_not_done_again(source: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    killed(source, tmp_path / "out", OPTIONS, setup=killing_at(len(whole["model.safetensors"]) // 2, 1))
    noted = len((tmp_path / "out.partial" / journal.NAME).read_text().splitlines()) - 1
    written: list[str] = []

    assert noted > 3
    with pytest.MonkeyPatch.context() as patch:
        write = conversion._write
        patch.setattr(
            conversion, "_write", lambda item, *rest: (written.append(item.weight.name), write(item, *rest))[1]
        )
        convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert len(written) == len(preview(source, OPTIONS).items) - noted


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize(("share", "syncs"), [(20, 99), (55, 99), (90, 99), (101, 1), (101, 2), (101, 3)])
def test_power_loss(source: Path, tmp_path: Path, whole: dict[str, bytes], share: int, syncs: int, group: int) -> None:
    """While writing, or while waiting for the disk the `syncs`th time.

    All that was not synced is gone, but the journal has survived to its last line.
    """
    durable = tmp_path / "durable"
    durable.write_bytes(b"")

    def setup() -> None:
        killing_at(len(whole["model.safetensors"]) * share // 100, group)()
        sync, left = layout.Files.sync, iter(range(syncs - 1))

        def kept(files: layout.Files) -> None:
            shard = (tmp_path / "out.partial" / "model.safetensors").read_bytes()
            if next(left, None) is None:
                die()
            sync(files)
            durable.with_suffix(".new").write_bytes(shard)
            durable.with_suffix(".new").replace(durable)

        layout.Files.sync = kept  # type: ignore[method-assign]

    with Child(source, tmp_path / "out", OPTIONS, setup=setup) as child:
        ended = child.wait() == 0  # It did not wait so often.
    assert ended == (tmp_path / "out").exists()
    if not ended:
        durable.replace(tmp_path / "out.partial" / "model.safetensors")
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


def missing(shard: Path) -> None:
    shard.unlink()


def cut(shard: Path) -> None:
    os.truncate(shard, shard.stat().st_size // 2)


def of_another_model(shard: Path) -> None:
    shard.write_bytes(shard.read_bytes().replace(b"layer_scalar", b"layer_scaler"))


@pytest.mark.parametrize("damage", [missing, cut, of_another_model])
def test_a_journal_without_its_shard_is_not_believed(
    source: Path, tmp_path: Path, whole: dict[str, bytes], damage: Callable[[Path], None]
) -> None:
    killed(source, tmp_path / "out", OPTIONS, setup=killing_at(len(whole["model.safetensors"]) // 2, 1))
    damage(tmp_path / "out.partial" / "model.safetensors")
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


@pytest.mark.parametrize("line", ["{}", "[1]", "\x00\x00", '{"name": "model.norm.weight"', '{"name": "x"}'], ids=repr)
def test_a_line_that_is_none(source: Path, tmp_path: Path, whole: dict[str, bytes], line: str) -> None:
    killed(source, tmp_path / "out", OPTIONS, setup=killing_at(100_000, 1))
    with (tmp_path / "out.partial" / journal.NAME).open("a") as file:
        file.write(line)
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


def test_an_error_of_the_disk_while_noting(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(files: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(layout.Files, "sync", failing)
    for group in GROUPS:
        monkeypatch.setattr(journal, "GROUP", group)
        with pytest.raises(DgemmaError, match="Input/output error"):
            convert(source, tmp_path / "target", OPTIONS)
        assert not list(tmp_path.iterdir())


def test_other_flags_are_refused(source: Path, tmp_path: Path) -> None:
    killed(source, tmp_path / "target", OPTIONS, setup=killing_at(100_000, 1))
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
    with pytest.raises(
        DgemmaError, match=rf"{tmp_path} has {free / 1e6:.1f} MB free, the result needs \d+\.\d [kM]B and 64"
    ):
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

"""Two processes, one destination: the second is refused and touches nothing; the first ends as if it were alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from dgemma.errors import BusyError
from dgemma_convert import Options, conversion, convert
from dgemma_convert.claim import claimed
from tests.cli.test_process import ENVIRONMENT, START
from tests.convert import models
from tests.convert.children import OPTIONS, Child, contents

BUSY = BusyError.exit_code


@pytest.mark.parametrize("verify", [False, True], ids=["", "verify"])
@pytest.mark.parametrize("resume", [False, True], ids=["new", "resume"])
@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_second_is_refused(
    source: Path, tmp_path: Path, whole: dict[str, bytes], share: float, resume: bool, verify: bool
) -> None:
    total = sum(len(data) for name, data in whole.items() if name.endswith(".safetensors"))
    at = int(share * (total - 16384) * (2 if verify else 1))
    with Child(source, tmp_path / "out", OPTIONS, held=at, verify=verify) as first:
        first.reached()
        before = contents(tmp_path / "out.partial")
        for other in (OPTIONS, Options(bits=8)):
            with pytest.raises(BusyError) as error:
                convert(source, tmp_path / "out", other, resume=resume)
            assert error.value.remedy and "\n" not in error.value.line()
        assert contents(tmp_path / "out.partial") == before
        first.go()
        assert first.wait() == 0
    found = contents(tmp_path / "out")
    assert verify or found == whole
    assert found.keys() == whole.keys() and found["model.safetensors"] == whole["model.safetensors"]
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("seed", range(6))
def test_several_at_once(source: Path, tmp_path: Path, whole: dict[str, bytes], seed: int) -> None:
    """Whoever wins, the result is whole, and those who say so are right."""
    draw = random.Random(seed)
    children = []
    for _ in range(4):
        children.append(Child(source, tmp_path / "out", OPTIONS, resume=draw.random() < 0.7))
        if draw.random() < 0.5:
            os.sched_yield()
    codes = [child.wait() for child in children]
    for child in children:
        child.__exit__(None, None, None)
    assert set(codes) <= {0, BUSY, 2} and 0 in codes, codes
    assert contents(tmp_path / "out") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_a_killed_holder_holds_nothing(source: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    with Child(source, tmp_path / "out", OPTIONS, held=1) as first:
        first.reached()
        first.kill()
    convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert contents(tmp_path / "out") == whole


def test_a_failed_holder_leaves_the_place_free(source: Path, tmp_path: Path, whole: dict[str, bytes]) -> None:
    broken = models.hub(tmp_path / "broken")
    with Child(broken, tmp_path / "out", OPTIONS, held=1) as first:
        first.reached()
        os.truncate(broken / "model.safetensors", 100_000)
        first.go()
        assert first.wait() == 4
    convert(source, tmp_path / "out", OPTIONS)
    assert contents(tmp_path / "out") == whole


def test_renamed_or_deleted_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lock of a folder that has another name by now is worth nothing."""
    for number, act in enumerate((lambda path: path.rename(path.with_suffix(".x")), Path.rmdir)):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(BusyError):
            patch.setattr("dgemma_convert.claim._lock", lambda handle, path, kind, act=act: act(path))
            with claimed(folder):
                pytest.fail("claimed")


@pytest.mark.parametrize("resume", [False, True])
def test_another_begins_while_the_headers_are_read(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, resume: bool
) -> None:
    """Nobody is told to delete what another process is writing."""
    preview = conversion.preview
    with ExitStack() as others:

        def read_slowly(*arguments: Any) -> Any:
            others.enter_context(claimed(tmp_path / "out.partial"))
            (tmp_path / "out.partial" / "model.safetensors").touch()
            return preview(*arguments)

        monkeypatch.setattr(conversion, "preview", read_slowly)
        with pytest.raises(BusyError):
            convert(source, tmp_path / "out", OPTIONS, resume=resume)


def test_the_command(source: Path, tmp_path: Path) -> None:
    with Child(source, tmp_path / "out", OPTIONS, held=1) as first:
        first.reached()
        command = [sys.executable, "-c", START, "convert", str(source), str(tmp_path / "out"), "--bits", "4"]
        done = subprocess.run([*command, "--resume"], env=ENVIRONMENT, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (BUSY, "") and done.stderr.count("\n") == 1
        assert "Another conversion is writing" in done.stderr
        first.go()
        assert first.wait() == 0

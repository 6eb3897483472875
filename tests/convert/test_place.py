"""Where a result goes: nothing is read or written for a place that cannot be, and nothing foreign is taken over."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dgemma.cli import app
from dgemma.errors import DgemmaError, UsageError, WriteError
from dgemma_convert import Options, convert, rehearse
from dgemma_convert.place import partial
from tests.cli.test_process import ENVIRONMENT, START
from tests.convert import models
from tests.convert.children import OPTIONS, Child, contents

Act = Callable[..., Any]
FULL = Path("/dev/full")
OTHERS = [Options(bits=8), Options(), Options(bits=4, dtype="fp16"), Options(bits=4, group_size=32), Options(to="hub")]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return models.hub(tmp_path / "in.partial" / "source")


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_a_finished_result_of_other_flags(source: Path, tmp_path: Path, other: Options) -> None:
    convert(source, tmp_path / "out", OPTIONS)
    before = contents(tmp_path / "out")
    with pytest.raises(UsageError, match="other flags") as error:
        convert(source, tmp_path / "out", other, resume=True)
    assert error.value.remedy
    assert contents(tmp_path / "out") == before


@pytest.mark.parametrize("changed", ["model.safetensors", "config.json", "chat_template.jinja"])
def test_a_finished_result_of_other_files(source: Path, tmp_path: Path, changed: str) -> None:
    convert(source, tmp_path / "out", OPTIONS)
    data = (source / changed).read_bytes()
    (source / changed).write_bytes(data + b" " if changed == "config.json" else data[:-1] + bytes([data[-1] ^ 1]))
    with pytest.raises(UsageError, match="other files"):
        convert(source, tmp_path / "out", OPTIONS, resume=True)


def test_large_files_of_one_size_differ(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgemma_convert.identity._BLOCK", 64)
    assert (source / "model.safetensors").stat().st_size > 64 * 64
    convert(source, tmp_path / "out", OPTIONS)
    tensors = {name: value * 2 for name, value in models.weights().items()}
    source.rename(tmp_path / "first")
    models.hub(source, tensors)
    with pytest.raises(UsageError, match="other files"):
        convert(source, tmp_path / "out", OPTIONS, resume=True)


def test_the_same_files_made_again_are_the_same(source: Path, tmp_path: Path) -> None:
    report = convert(source, tmp_path / "out", OPTIONS)
    for file in source.iterdir():
        os.utime(file, (1, 1))
    assert convert(source, tmp_path / "out", OPTIONS, resume=True) == report


def test_verify_a_finished_result(source: Path, tmp_path: Path) -> None:
    convert(source, tmp_path / "out", OPTIONS)
    convert(source, tmp_path / "verified", OPTIONS, verify=True)
    assert convert(source, tmp_path / "out", OPTIONS, verify=True, resume=True)["verified"]
    assert contents(tmp_path / "out") == contents(tmp_path / "verified")


def test_verify_finds_a_damaged_result(source: Path, tmp_path: Path) -> None:
    plain = Options(to="hub")
    convert(source, tmp_path / "out", plain)
    shard = tmp_path / "out" / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-4] + b"\0\0\0\x40")
    with pytest.raises(DgemmaError, match="should be exact"):
        convert(source, tmp_path / "out", plain, verify=True, resume=True)


def dangling(source: Path, target: Path) -> Path:
    target.symlink_to(target.with_name("nothing"))
    return target


def circular(source: Path, target: Path) -> Path:
    target.symlink_to(target)
    return target


def through_a_link(source: Path, target: Path) -> Path:
    target.symlink_to(source)
    return target / "sub"


def below_a_file(source: Path, target: Path) -> Path:
    target.write_text("")
    return target / "sub" / "out"


def below_a_broken_link(source: Path, target: Path) -> Path:
    return dangling(source, target) / "out"


PLACES = {
    "dangling link": (dangling, UsageError),
    "circular link": (circular, UsageError),
    "in the source": (lambda source, target: source / "sub", UsageError),
    "deep in the source": (lambda source, target: source / "a" / "b", UsageError),
    "in the source, dotted": (lambda source, target: source / ".." / source.name / "sub", UsageError),
    "in the source, through a link": (through_a_link, UsageError),
    "around the source": (lambda source, target: target.with_name("in"), UsageError),
    "no name": (lambda source, target: target / "..", UsageError),
    "below a file": (below_a_file, WriteError),
    "below a broken link": (below_a_broken_link, WriteError),
    "a name too long": (lambda source, target: target.with_name("n" * 300), WriteError),
}


@pytest.mark.parametrize("act", [convert, rehearse], ids=["real", "dry"])
@pytest.mark.parametrize("resume", [False, True], ids=["new", "resume"])
@pytest.mark.parametrize("kind", PLACES)
def test_places_that_cannot_be(
    source: Path, tmp_path: Path, kind: str, resume: bool, act: Act, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, expected = PLACES[kind]
    target = make(source, tmp_path / "target")
    before = sorted(tmp_path.rglob("*"))
    monkeypatch.setattr("dgemma_convert.conversion.readers.open_source", lambda path: pytest.fail("read"))
    with pytest.raises(expected) as error:
        act(source, target, OPTIONS, resume=resume)
    assert error.value.remedy
    assert sorted(tmp_path.rglob("*")) == before


def existing(source: Path, target: Path) -> Path:
    convert(source, target, OPTIONS)
    return target


def unfinished(source: Path, target: Path) -> Path:
    with Child(source, target, OPTIONS, held=1) as child:
        child.reached()
        child.kill()
    return target


def foreign(source: Path, target: Path) -> Path:
    partial(target).mkdir()
    (partial(target) / "notes.txt").write_text("mine")
    return target


def foreign_file(source: Path, target: Path) -> Path:
    partial(target).write_bytes(b"mine")
    return target


def foreign_link(source: Path, target: Path) -> Path:
    (target.parent / "elsewhere").mkdir()
    partial(target).symlink_to(target.parent / "elsewhere")
    return target


def dead_link(source: Path, target: Path) -> Path:
    partial(target).symlink_to(target.parent / "nowhere")
    return target


FOREIGN = (foreign, foreign_file, foreign_link, dead_link)
TAKEN: dict[str, tuple[Callable[[Path, Path], Path], Options, bool, bool]] = {
    "the source": (lambda source, target: source, OPTIONS, False, True),
    "the source, resumed": (lambda source, target: source, OPTIONS, True, True),
    "finished": (existing, OPTIONS, False, True),
    "finished, resumed": (existing, OPTIONS, True, False),
    "finished, other flags": (existing, Options(bits=8), True, True),
    "unfinished": (unfinished, OPTIONS, False, True),
    "unfinished, resumed": (unfinished, OPTIONS, True, False),
    "unfinished, other flags": (unfinished, Options(bits=8), True, True),
    **{f"{make.__name__}, {resume}": (make, OPTIONS, resume, True) for make in FOREIGN for resume in (False, True)},
    "free": (lambda source, target: target, OPTIONS, False, False),
}


@pytest.mark.parametrize("kind", TAKEN)
def test_a_dry_run_says_what_a_real_one_would(source: Path, tmp_path: Path, kind: str) -> None:
    make, options, resume, refused = TAKEN[kind]
    target = make(source, tmp_path / "out")
    before = sorted(tmp_path.rglob("*"))
    told = []
    for act in (rehearse, convert):
        try:
            act(source, target, options, resume=resume)
        except DgemmaError as error:
            told.append(error.line())
        if act is rehearse:
            assert sorted(tmp_path.rglob("*")) == before
    assert len(told) == (2 if refused else 0) and len(set(told)) == (1 if refused else 0)
    assert make not in FOREIGN or "is not an unfinished conversion" in told[0]


def test_the_command_s_dry_run(source: Path, tmp_path: Path) -> None:
    for target, code in ((source, 2), (source / "sub", 2), (tmp_path / "out", 0)):
        words = ["convert", str(source), str(target), "--bits", "4", "--dry-run"]
        assert CliRunner().invoke(app, words).exit_code == code


@pytest.mark.parametrize(
    "content", [{"notes.txt": b"mine"}, {".progress.jsonl": b"\xff{"}, {"dgemma_convert.json": b"[]"}]
)
def test_a_foreign_partial_folder_stays(source: Path, tmp_path: Path, content: dict[str, bytes]) -> None:
    (tmp_path / "out.partial").mkdir()
    for name, data in content.items():
        (tmp_path / "out.partial" / name).write_bytes(data)
    with pytest.raises(UsageError) as error:
        convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert error.value.remedy
    assert contents(tmp_path / "out.partial") == content


def test_a_partial_file_stays(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out.partial").write_bytes(b"mine")
    with pytest.raises(UsageError, match="not an unfinished"):
        convert(source, tmp_path / "out", OPTIONS, resume=True)
    assert (tmp_path / "out.partial").read_bytes() == b"mine"


@pytest.mark.skipif(not FULL.exists(), reason="no /dev/full")
@pytest.mark.parametrize("flags", [["--dry-run"], ["--dry-run", "--json"], ["--json"]], ids=" ".join)
@pytest.mark.parametrize("unbuffered", ["", "1"], ids=["buffered", "unbuffered"])
def test_standard_output_is_full(source: Path, tmp_path: Path, flags: list[str], unbuffered: str) -> None:
    command = [sys.executable, "-c", START, "convert", str(source), str(tmp_path / "out"), *flags]
    with FULL.open("w") as full:
        done = subprocess.run(
            command, env=ENVIRONMENT | {"PYTHONUNBUFFERED": unbuffered}, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1, done.stderr
    assert b"Standard output cannot be written" in done.stderr

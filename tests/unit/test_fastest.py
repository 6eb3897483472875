"""The choice among candidates: by a clock that the test owns, kept on file, never at the mercy of that file."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dgemma import fastest as subject
from dgemma.fastest import Choice, Question, fastest, remembered

QUESTION = Question("experts 8x64 affine", "Some Chip", "mlx 0.32.4", "0.1.0")


class Bench:
    """Candidates that take as long as it says, by its own clock."""

    def __init__(self, **seconds: float) -> None:
        self.now, self.calls = 0.0, 0
        self.candidates: dict[str, Callable[[], Any]] = {name: self._taking(each) for name, each in seconds.items()}

    def _taking(self, seconds: float) -> Callable[[], Any]:
        def run() -> float:
            self.calls += 1
            self.now += seconds
            return 1.0

        return run

    def choose(self, path: Path, question: Question = QUESTION) -> Choice:
        return fastest(question, self.candidates, lambda a, b: a == b, lambda: self.now, path)


@pytest.mark.parametrize(
    ("seconds", "name"),
    [
        ({"plain": 2.0, "tiles": 1.0}, "tiles"),
        ({"plain": 1.0, "tiles": 2.0}, "plain"),
        ({"plain": 1.0, "tiles": 0.99}, "plain"),
        ({"plain": 3.0, "eight": 2.0, "sixteen": 1.0}, "sixteen"),
    ],
)
def test_the_fastest_wins_unless_the_incumbent_is_as_good(tmp_path: Path, seconds: dict[str, float], name: str) -> None:
    assert Bench(**seconds).choose(tmp_path / "choices.json").name == name


def test_one_slow_lap_decides_nothing(tmp_path: Path) -> None:
    bench = Bench(plain=2.0, tiles=1.0)
    laps = iter([1.0, 100.0, 1.0, 1.0, 1.0, 1.0])

    def uneven() -> float:
        bench.now += next(laps)
        return 1.0

    bench.candidates["tiles"] = uneven
    choice = bench.choose(tmp_path / "choices.json")
    assert (choice.name, choice.seconds["tiles"]) == ("tiles", 1.0)


def test_a_known_choice_is_not_timed_again(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "choices.json"
    first = Bench(plain=2.0, tiles=1.0).choose(path)
    later = Bench(plain=1.0, tiles=2.0)
    assert later.choose(path) == first
    assert later.calls == 0
    assert [each.name for each in path.parent.iterdir()] == ["choices.json"]


@pytest.mark.parametrize("change", ["device", "library", "version", "work"])
def test_another_device_release_or_shape_is_timed(tmp_path: Path, change: str) -> None:
    path = tmp_path / "choices.json"
    Bench(plain=2.0, tiles=1.0).choose(path)
    other = replace(QUESTION, **{change: "another"})
    assert Bench(plain=1.0, tiles=2.0).choose(path, other).name == "plain"
    superseded = change in ("library", "version")
    assert len(remembered(path)) == (1 if superseded else 2)


def test_new_candidates_are_timed(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    Bench(plain=2.0, tiles=1.0).choose(path)
    assert Bench(plain=2.0, tiles=1.0, more=0.5).choose(path).name == "more"


def test_nothing_to_choose_from_is_not_timed(tmp_path: Path) -> None:
    bench = Bench(plain=1.0)
    assert bench.choose(tmp_path / "choices.json") == Choice("plain", {}, {})
    assert bench.calls == 0
    assert not list(tmp_path.iterdir())


def test_a_candidate_that_raises_or_computes_something_else_is_out(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    bench = Bench(plain=2.0, raises=1.0, differs=1.0)

    def fail() -> Any:
        raise RuntimeError("no such function\nline 2")

    bench.candidates |= {"raises": fail, "differs": lambda: 2.0}
    choice = bench.choose(path)
    assert choice.name == "plain"
    assert choice.failures == {"raises": "RuntimeError: no such function", "differs": "its result differs"}
    assert bench.choose(path) == choice


DAMAGED = [
    b"",
    b"{",
    b"\xff\xfe",
    b"7",
    b'{"a": 1}',
    b"[1]",
    b'[{"work": 1}]',
    json.dumps(
        [
            {
                "work": QUESTION.work,
                "device": QUESTION.device,
                "library": QUESTION.library,
                "version": QUESTION.version,
                "name": "gone",
                "seconds": {"plain": 1, "tiles": "x"},
                "failures": {},
            }
        ]
    ).encode(),
]


@pytest.mark.parametrize("content", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_written_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "choices.json"
    path.write_bytes(content)
    choice = Bench(plain=2.0, tiles=1.0).choose(path)
    assert choice.name == "tiles"
    assert remembered(path) == [(QUESTION, choice)]


def test_a_folder_that_cannot_be_made_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert Bench(plain=2.0, tiles=1.0).choose(tmp_path / "file" / "choices.json").name == "tiles"


def test_a_write_that_fails_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choices.json"
    before = Bench(plain=2.0, tiles=1.0).choose(path)

    def full(*_: Any) -> Any:
        raise OSError("disk full")

    monkeypatch.setattr(subject.Path, "replace", full)
    assert Bench(plain=1.0, tiles=2.0).choose(path, replace(QUESTION, work="other")).name == "plain"
    assert remembered(path) == [(QUESTION, before)]
    assert [each.name for each in tmp_path.iterdir()] == ["choices.json"]

"""A signal before every single line of a conversation: what it may end and what it may not."""

import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import dgemma
from dgemma import signals
from dgemma.backend import REGISTRY
from dgemma.cli import lines
from dgemma.cli.conversation import Conversation
from dgemma.cli.terminal import Terminal
from scripted_backend import ENTRY, NAME

OURS = ("conversation.py", "interrupts.py", "lines.py", "contextlib.py")
ENTRIES = ("one", "two")


class Left(BaseException):
    pass


def leave(number: int, frame: FrameType | None = None) -> None:
    raise Left(128 + number)


@pytest.fixture
def model(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dgemma.Model]:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    monkeypatch.setattr(signals, "leave", leave)
    (folder / "script.txt").write_text("Hello.")
    with dgemma.load(str(folder), NAME) as loaded:
        yield loaded


def converse(model: dgemma.Model, trace: Callable[..., Any] | None) -> tuple[int, list[str]]:
    """The exit code and the prompts that were answered in full."""
    with model.chat(seed=1) as chat:
        talk = Conversation(chat, Terminal(quiet=True, show="none"), at_end=True)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            code = talk.run()
        except Left as left:
            code = left.args[0]
        finally:
            sys.settrace(before)
        return code, [turn.prompt for turn in chat.turns if turn.answer == "Hello."]


class At:
    """Raises a signal before the line with this number, counted over the whole conversation."""

    def __init__(self, place: int, number: int) -> None:
        self.place, self.number, self.seen = place, number, 0
        self.where = ""

    def __call__(self, frame: FrameType, event: str, argument: object) -> Any:
        if not frame.f_code.co_filename.endswith(OURS):
            return None
        if event == "line":
            self.seen += 1
            if self.seen == self.place and signal.getsignal(self.number) not in (signal.SIG_DFL, outside):
                self.where = f"{frame.f_code.co_filename}:{frame.f_lineno}"
                signal.raise_signal(self.number)
        return self


def outside(number: int, frame: FrameType | None) -> None:
    """What handles signals before and after the conversation."""


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    before = {number: signal.signal(number, outside) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize(
    ("number", "interactive", "code"),
    [(signal.SIGINT, True, 0), (signal.SIGTERM, True, 143), (signal.SIGINT, False, 130), (signal.SIGTERM, False, 143)],
)
def test_at_every_line(
    model: dgemma.Model, monkeypatch: pytest.MonkeyPatch, number: int, interactive: bool, code: int
) -> None:
    def ask_from(*ignored: object) -> Callable[[str], str | None]:
        left = [*ENTRIES]
        return lambda prompt: left.pop(0) if left else None

    monkeypatch.setattr(lines, "_is_terminal", lambda: interactive)
    monkeypatch.setattr(lines, "_editing", ask_from)
    monkeypatch.setattr(lines, "_plain", ask_from())
    monkeypatch.setattr(Conversation, "_greet", lambda self: None)
    whole = At(0, number)
    assert converse(model, whole) == (0, [*ENTRIES]) and whole.seen > 50
    hit = 0
    for place in range(1, whole.seen + 1, 2):
        monkeypatch.setattr(lines, "_plain", ask_from())
        at = At(place, number)
        found, answered = converse(model, at)
        if not at.where:
            continue
        hit += 1
        assert found == code, at.where
        assert code or len(answered) >= len(ENTRIES) - 1, f"more than one answer is lost: {at.where}"
    assert hit > 20

"""The commands of a conversation: lines that begin with a slash, and the letters q, r, h alone on a line."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from dgemma.chat import Chat
from dgemma.cli.options import two_numbers
from dgemma.cli.report import stats_line
from dgemma.errors import UsageError
from dgemma.generation import Generation
from dgemma.settings import Settings

HELP = '''/help                this list (h)
/exit                leave (q, Ctrl-D)
/clear               forget the conversation (r)
/system TEXT         set the system message; without TEXT remove it
/set NAME VALUE      change a setting for the turns to come; without arguments list them; VALUE default resets
/regen [SEED]        answer the last message again, with another seed or with SEED
/undo                take the last turn back
/save FILE           write the conversation as JSON; a file that is not this conversation's own is left alone
/save! FILE          write it over whatever is there
/load FILE           read one
/stats               what the conversation and the last turn cost
/think on|off        reason before answering
"""                  begins and ends an entry of several lines
Ctrl-C stops an answer or drops a line.'''
WORDS = tuple(line.split()[0] for line in HELP.splitlines() if line.startswith("/"))
_LETTERS = {"q": "/exit", "r": "/clear", "h": "/help"}


@dataclass(frozen=True, slots=True)
class Again:
    """The command asks for another answer to the last message."""

    seed: int | None


class Leave(Exception):
    """The command ends the conversation."""


class Commands:
    """Carries out commands on a chat. `last` is the newest generation."""

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self.last: Generation | None = None
        self.count = 0
        self._file: Path | None = None
        self._known: dict[str, Callable[[str], str | Again]] = {
            "/help": lambda argument: HELP,
            "/exit": self._exit,
            "/clear": self._clear,
            "/system": self._system,
            "/set": self._set,
            "/regen": self._regen,
            "/undo": self._undo,
            "/save": self._save,
            "/save!": self._save_over,
            "/load": self._load,
            "/stats": self._stats,
            "/think": self._think,
        }

    def run(self, line: str) -> str | Again | None:
        """The reply to `line`, or None where it is no command. Raises UsageError, Leave."""
        line = _LETTERS.get(line.strip(), line.strip())
        if not line.startswith("/"):
            return None
        name, _, argument = line.partition(" ")
        if name not in self._known:
            raise UsageError(f"There is no command {name}.", "Try /help.")
        return self._known[name](argument.strip())

    def _exit(self, argument: str) -> str:
        raise Leave

    def _clear(self, argument: str) -> str:
        self._chat.clear()
        return "Forgotten."

    def _system(self, argument: str) -> str:
        self._adopt(self._chat.settings.with_(system=argument or None))
        return "System message set." if argument else "System message removed."

    def _think(self, argument: str) -> str:
        if argument not in ("on", "off"):
            raise UsageError("Say /think on or /think off.")
        self._adopt(self._chat.settings.with_(think=argument == "on"))
        return f"Thinking is {argument}."

    def _set(self, argument: str) -> str:
        if not argument:
            return "\n".join(f"{name} = {_shown(getattr(self._chat.settings, name))}" for name in _SETTABLE)
        name, _, value = argument.partition(" ")
        with _naming(name, value.strip()):
            self._adopt(changed(self._chat.settings, name, value.strip()))
        return f"{name} = {_shown(getattr(self._chat.settings, name))}"

    def _adopt(self, settings: Settings) -> None:
        """Use `settings` from now on, if this model can; otherwise the old ones stay."""
        self._chat.model.check(settings)
        self._chat.settings = settings

    def _regen(self, argument: str) -> Again:
        if argument and not argument.isdecimal():
            raise UsageError(f"/regen takes a seed, not {argument!r}.")
        if not self._chat.turns:
            raise UsageError("There is no turn to answer again.")
        return Again(int(argument) if argument else None)

    def _undo(self, argument: str) -> str:
        turn = self._chat.undo()
        return f"Taken back: {_short(turn.prompt)} ({self._turns()} left)"

    def _save(self, argument: str) -> str:
        path = _path(argument)
        _check_no_folder(path)
        if path.exists() and not (self._file is not None and self._file.exists() and path.samefile(self._file)):
            raise UsageError(f"{path} exists and is not this conversation's file.", f"Overwrite it: /save! {path}")
        return self._save_over(argument)

    def _save_over(self, argument: str) -> str:
        path = _path(argument)
        _check_no_folder(path)
        self._chat.save(path)
        self._file = path
        return f"Saved {self._turns()} to {path}."

    def _load(self, argument: str) -> str:
        path = _path(argument)
        self._chat.load(path)
        self._file = path
        return f"Loaded {self._turns()} from {path}."

    def _turns(self) -> str:
        count = len(self._chat.turns)
        return "1 turn" if count == 1 else f"{count} turns"

    def _stats(self, argument: str) -> str:
        limit = self._chat.model.backend.config.max_position_embeddings
        total = f"{self._turns()} · {self.count} tokens generated"
        held = f"{self._chat.cached_tokens} of {limit} positions in the cache"
        return "\n".join([f"{total} · {held}", *([stats_line(self.last)] if self.last else [])])


def changed(settings: Settings, name: str, value: str) -> Settings:
    """`settings` with one of them read from text. Raises UsageError."""
    if name not in _SETTABLE:
        raise UsageError(f"There is no setting {name!r}.", f"Settings: {', '.join(_SETTABLE)}.")
    if value in ("", "default"):
        return settings.with_(**{name: _DEFAULTS[name]})
    with _naming(name, value):
        return settings.with_(**{name: _SETTABLE[name](value)})


@contextmanager
def _naming(name: str, value: str) -> Iterator[None]:
    """Say which setting an error is about, as the user wrote it."""
    head = f"{name} does not take {value!r}"
    try:
        yield
    except ValueError:
        raise UsageError(f"{head}.") from None
    except UsageError as error:
        known = name in _SETTABLE and not str(error).startswith(head)
        raise UsageError(f"{head}: {error}", error.remedy) if known else error from None


_SETTABLE: Mapping[str, Callable[[str], Any]] = {
    "max_tokens": int,
    "seed": int,
    "steps": int,
    "entropy_bound": float,
    "temperature": float,
    "temperature_range": two_numbers,
    "canvas_length": int,
    "stop": lambda text: (text,),
}
_DEFAULTS = {field.name: field.default for field in fields(Settings)}


def _shown(value: Any) -> str:
    return (
        "default"
        if value is None or value == ()
        else ",".join(map(str, value))
        if isinstance(value, tuple)
        else str(value)
    )


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= 40 else line[:39] + "…"


def _check_no_folder(path: Path) -> None:
    if path.is_dir():
        raise UsageError(f"{path} is a folder.", "Name a file in it.")


def _path(argument: str) -> Path:
    if not argument or "\0" in argument:
        raise UsageError("Name a file.")
    try:
        return Path(argument).expanduser()
    except RuntimeError:
        raise UsageError(f"{argument} has no home folder.", "Name a file.") from None

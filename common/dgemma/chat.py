"""A conversation with a model: its turns, its settings, and the cache that they share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dgemma.api import Model
from dgemma.errors import UsageError, require
from dgemma.generation import Generation, Stream
from dgemma.outputs import check_distinct, write_file
from dgemma.session import Session
from dgemma.settings import Settings
from dgemma.template import Message

_SCHEMA = 1
_LARGEST = 64_000_000


@dataclass(frozen=True, slots=True)
class Turn:
    """One exchange. The template sees `prompt` and `answer`; `reasoning` and `seed` are kept for people."""

    prompt: str
    answer: str
    reasoning: str = ""
    seed: int | None = None


class Chat:
    """Multi-turn generation. `settings` and `turns` may be changed between turns; use it as a context manager.

    A turn equals a cold run of `Model.generate` with all messages so far and the same seed.
    """

    def __init__(self, model: Model, settings: Settings | None = None, turns: Sequence[Turn] = ()) -> None:
        self.model = model
        self.settings = settings or Settings()
        self.turns = list(turns)
        self._session = Session(model.backend)

    @property
    def messages(self) -> list[Message]:
        """The turns as messages, without the system message, which is a setting."""
        return _messages(self.turns)

    @property
    def cached_tokens(self) -> int:
        """Tokens in the cache."""
        return self._session.cached

    def send(self, prompt: str, **overrides: Any) -> Generation:
        """Answer `prompt` and add the turn. Overrides are fields of `Settings`, for this turn."""
        return _drained(self.stream(prompt, **overrides))

    def stream(self, prompt: str, **overrides: Any) -> Stream:
        """The events of `send`. The turn is added with the last one; a stream closed before leaves no trace."""
        return self._stream(len(self.turns), prompt, overrides)

    def regenerate(self, **overrides: Any) -> Generation:
        """Answer the last prompt once more, in place of its answer; the same seed gives the same answer."""
        return _drained(self.stream_again(**overrides))

    def stream_again(self, **overrides: Any) -> Stream:
        """The events of `regenerate`; a stream closed before its end keeps the old answer."""
        require(bool(self.turns), "There is no turn to answer again.")
        return self._stream(len(self.turns) - 1, self.turns[-1].prompt, overrides)

    def undo(self) -> Turn:
        """Take back the last turn and return it."""
        require(bool(self.turns), "There is no turn to take back.")
        return self.turns.pop()

    def clear(self) -> None:
        """Forget all turns and free the cache."""
        self.turns.clear()
        self._session.close()

    def save(self, path: Path) -> None:
        """Write the conversation as JSON: model, system message, and messages as the OpenAI format has them.

        A file of that name is replaced in one step. Raises WriteError, and UsageError where it is one of the model's.
        """
        check_distinct(path, *self.model.folder.iterdir())
        system = self.settings.system
        head = [] if system is None else [{"role": "system", "content": system}]
        found = {"schema": _SCHEMA, "model": self.model.located.name, "messages": [*head, *map(dict, self.messages)]}
        found |= {"seeds": [turn.seed for turn in self.turns], "reasoning": [turn.reasoning for turn in self.turns]}
        write_file(path, (json.dumps(found, ensure_ascii=False, indent=1) + "\n").encode("utf-8"))

    def load(self, path: Path) -> None:
        """Replace turns and system message by those of a file that `save` wrote.

        Raises UsageError, and changes nothing, where it is not such a file or this model cannot go on from it.
        """
        system, turns = _read(path)
        settings = self.settings.with_(system=system)
        try:
            self.model.check(settings, [*_messages(turns), {"role": "user", "content": ""}])
        except UsageError as error:
            raise UsageError(f"{path} cannot be gone on from: {error}", error.remedy) from error
        self.settings, self.turns = settings, turns

    def close(self) -> None:
        """Free the cache."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: Any, trace: TracebackType | None) -> None:
        self.close()

    def _stream(self, index: int, prompt: str, overrides: dict[str, Any]) -> Stream:
        def finished(found: Generation) -> None:
            if found.tokens or found.finish_reason != "cancelled":
                self.turns[index:] = [Turn(prompt, found.text, found.reasoning, found.seed)]

        settings = self.settings.with_(**overrides)
        require(not settings.raw, "A conversation needs the chat template.", "Leave raw out.")
        messages = [*_messages(self.turns[:index]), {"role": "user", "content": prompt}]
        return self.model.stream(messages, settings, session=self._session, finished=finished)


def _messages(turns: Sequence[Turn]) -> list[Message]:
    pairs = [({"role": "user", "content": t.prompt}, {"role": "assistant", "content": t.answer}) for t in turns]
    return [message for pair in pairs for message in pair]


def _drained(stream: Stream) -> Generation:
    with stream:
        for _ in stream:
            pass
    return stream.generations[0]


def _read(path: Path) -> tuple[str | None, list[Turn]]:
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder.", "Name a file in it.")
        if path.exists() and not path.is_file():
            raise UsageError(f"{path} is not a file.")
        if path.stat().st_size > _LARGEST:
            raise UsageError(f"{path} is too large for a saved conversation.")
        return _parsed(json.loads(path.read_bytes()))
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}.") from error
    except _Damage as error:
        raise UsageError(f"{path} is not a saved conversation: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a saved conversation: it is not JSON.") from error


class _Damage(Exception):
    """What is wrong with a saved conversation, in words."""


def _parsed(found: object) -> tuple[str | None, list[Turn]]:
    fields = _object(found, "the whole")
    if fields.get("schema", _SCHEMA) != _SCHEMA:
        raise _Damage(f"its schema is {json.dumps(fields['schema'])}, not {_SCHEMA}")
    if "messages" not in fields:
        raise _Damage("messages are missing")
    messages = [_message(each) for each in _list(fields["messages"], "messages")]
    system = messages.pop(0)[1] if messages and messages[0][0] == "system" else None
    users, answers = messages[::2], messages[1::2]
    if [role for role, _ in messages] != ["user", "assistant"] * len(answers):
        raise _Damage("user and assistant do not alternate")
    seeds = [_seed(each) for each in _column(fields, "seeds", None, len(users))]
    thoughts = [_text(each, "reasoning") for each in _column(fields, "reasoning", "", len(users))]
    rows = zip(users, answers, thoughts, seeds, strict=True)
    return system, [Turn(prompt, answer, thought, seed) for (_, prompt), (_, answer), thought, seed in rows]


def _message(found: object) -> tuple[str, str]:
    fields = _object(found, "a message")
    return _text(fields.get("role"), "role"), _text(fields.get("content"), "content")


def _column(fields: dict[str, Any], name: str, absent: object, count: int) -> list[object]:
    found = _list(fields.get(name) or [absent] * count, name)
    if len(found) != count:
        raise _Damage(f"{name} has {len(found)} entries for {count} turns")
    return found


def _object(value: object, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise _Damage(f"{name} is not an object")
    return value


def _list(value: object, name: str) -> list[object]:
    if not isinstance(value, list):
        raise _Damage(f"{name} is not a list")
    return value


def _text(value: object, name: str) -> str:
    if not isinstance(value, str):
        raise _Damage(f"{name} is not a text")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise _Damage(f"{name} is not UTF-8 text") from None
    return value


def _seed(value: object) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
        raise _Damage("a seed is not a number")
    return value

"""Tool calls as Gemma writes them: `call:name{key:<|"|>text<|"|>,n:3,flag:true,list:[1,2],nested:{...}}`."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

QUOTE = '<|"|>'
_HEAD = re.compile(r"\s*call:\s*([^\s{]+)\s*")
_KEY = re.compile(r"\s*([^\s:,{}\[\]]+)\s*:")
_ATOM = re.compile(r"[^,{}\[\]]+")


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One call; `name` and `arguments` are None where `raw` could not be understood."""

    name: str | None
    arguments: dict[str, Any] | None
    raw: str

    def as_dict(self) -> dict[str, Any]:
        """The JSON form: name and arguments, or the raw text alone."""
        return {"raw": self.raw} if self.name is None else {"name": self.name, "arguments": self.arguments}


def parse_call(raw: str) -> ToolCall:
    """Parse the text between the tool-call markers; what cannot be understood is kept as `raw`."""
    head = _HEAD.match(raw)
    if head is None:
        return ToolCall(None, None, raw)
    reader = _Reader(raw, head.end())
    try:
        arguments = reader.mapping()
        reader.end()
    except (ValueError, RecursionError):
        return ToolCall(None, None, raw)
    return ToolCall(head[1], arguments, raw)


class _Reader:
    """Recursive descent over one call; raises ValueError where the syntax breaks."""

    def __init__(self, text: str, position: int) -> None:
        self._text, self._at = text, position

    def mapping(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        self._expect("{")
        while not self._accept("}"):
            if found:
                self._expect(",")
            key = self._key()
            found[key] = self._value()
        return found

    def end(self) -> None:
        if self._text[self._at :].strip():
            raise ValueError("text after the call")

    def _value(self) -> Any:
        self._skip()
        if self._text.startswith("{", self._at):
            return self.mapping()
        if self._accept("["):
            return self._items()
        if self._accept(QUOTE):
            return self._until(QUOTE)
        return self._json() if self._text.startswith('"', self._at) else self._atom()

    def _items(self) -> list[Any]:
        found: list[Any] = []
        while not self._accept("]"):
            if found:
                self._expect(",")
            found.append(self._value())
        return found

    def _key(self) -> str:
        if self._accept(QUOTE):
            name = self._until(QUOTE)
            self._expect(":")
            return name
        match = _KEY.match(self._text, self._at)
        if match is None:
            raise ValueError("no key")
        self._at = match.end()
        return match[1].strip('"')

    def _json(self) -> Any:
        value, self._at = json.JSONDecoder().raw_decode(self._text, self._at)
        return value

    def _atom(self) -> Any:
        match = _ATOM.match(self._text, self._at)
        if match is None or not match[0].strip():
            raise ValueError("no value")
        self._at = match.end()
        word = match[0].strip()
        try:
            return json.loads(word)
        except ValueError:
            return None if word == "None" else word

    def _until(self, mark: str) -> str:
        stop = self._text.index(mark, self._at)
        start, self._at = self._at, stop + len(mark)
        return self._text[start:stop]

    def _skip(self) -> None:
        while self._text[self._at : self._at + 1].isspace():
            self._at += 1

    def _accept(self, mark: str) -> bool:
        self._skip()
        found = self._text.startswith(mark, self._at)
        self._at += len(mark) if found else 0
        return found

    def _expect(self, mark: str) -> None:
        if not self._accept(mark):
            raise ValueError(f"expected {mark}")

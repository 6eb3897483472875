"""The checkpoint's own chat template, rendered as its authors expect: sandboxed, with their helper functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from dgemma.errors import CheckpointError, UnsupportedError, UsageError
from dgemma.jsonfile import read_json

if TYPE_CHECKING:
    from jinja2 import Template

Message = Mapping[str, Any]
_MOST_BYTES = 4_000_000


@dataclass(frozen=True, slots=True)
class ChatTemplate:
    """A compiled template and the special tokens it may name (bos_token, eos_token, ...)."""

    template: Template
    tokens: Mapping[str, str]

    @classmethod
    def from_folder(cls, folder: Path) -> ChatTemplate:
        """Read chat_template.jinja, or the template inside tokenizer_config.json."""
        path = folder / "tokenizer_config.json"
        config = read_json(path) if path.is_file() else {}
        return cls.of(_source(folder, config), _tokens(config))

    @classmethod
    def of(cls, source: str, tokens: Mapping[str, str]) -> ChatTemplate:
        """Compile `source`; raises CheckpointError where it is not valid Jinja."""
        from jinja2 import TemplateError

        try:
            return cls(_environment().from_string(source), tokens)
        except TemplateError as error:
            raise CheckpointError(f"The chat template does not compile: {error}.") from error

    def render(
        self,
        messages: Sequence[Message],
        add_generation_prompt: bool = True,
        enable_thinking: bool = False,
        tools: Sequence[Mapping[str, Any]] | None = None,
    ) -> str:
        """The prompt text. It holds its own bos: encode it without adding special tokens."""
        from jinja2 import TemplateError

        for message in messages:
            _check(message)
        try:
            return self.template.render(
                **self.tokens,
                messages=list(messages),
                tools=list(tools) if tools else None,
                documents=None,
                add_generation_prompt=add_generation_prompt,
                enable_thinking=enable_thinking,
            )
        except _Refused as refusal:
            raise UsageError(f"The chat template refuses these messages: {refusal}.") from None
        except (TemplateError, TypeError, ValueError) as error:
            raise CheckpointError(f"The chat template fails on these messages: {error}.") from error


class _Refused(Exception):
    """What a template raises on purpose."""


def _check(message: Message) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise UsageError(f"A message needs a role and a content, not {message!r}.")
    content = message.get("content")
    parts = content if isinstance(content, list) else []
    for part in parts:
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text":
            raise UnsupportedError(f"Message parts of type {kind!r} are not supported.", "Send text only.")


def _source(folder: Path, config: Mapping[str, Any]) -> str:
    path = folder / "chat_template.jinja"
    if path.is_file():
        if path.stat().st_size > _MOST_BYTES:
            raise CheckpointError(f"{path} is larger than any model's.", "Download the model again.")
        try:
            return path.read_text(encoding="utf-8")
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path} cannot be read: {error}.", "Download the model again.") from error
    found = config.get("chat_template")
    if isinstance(found, list):
        named = (entry for entry in found if isinstance(entry, Mapping) and entry.get("name") == "default")
        found = next((entry.get("template") for entry in named), None)
    if not isinstance(found, str):
        raise CheckpointError(f"{folder} has no chat template.", "Use --raw to give the prompt as it is.")
    return found


def _tokens(config: Mapping[str, Any]) -> dict[str, str]:
    named = {name: value for name, value in config.items() if name.endswith("_token")}
    texts = {name: value.get("content") if isinstance(value, Mapping) else value for name, value in named.items()}
    return {name: text for name, text in texts.items() if isinstance(text, str)}


def _environment() -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """Accepts the tags that mark the assistant's part for training; rendering ignores them."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body).set_lineno(line)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
    return environment


def _tojson(value: Any, **options: Any) -> str:
    return json.dumps(value, **{"ensure_ascii": False, **options})


def _raise(message: str) -> NoReturn:
    raise _Refused(message)

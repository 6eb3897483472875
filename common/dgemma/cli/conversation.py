"""The loop of `dgemma chat`: read an entry, carry out a command or stream an answer, until the end."""

from __future__ import annotations

from typing import Any

from dgemma.chat import Chat
from dgemma.cli.commands import WORDS, Again, Commands, Leave
from dgemma.cli.lines import Lines
from dgemma.cli.printer import Output, Printer
from dgemma.cli.report import turn_line
from dgemma.cli.terminal import Interrupts, Terminal
from dgemma.cli.visible import visible
from dgemma.errors import UsageError
from dgemma.generation import Stream


class Conversation:
    """Runs a chat on a terminal or on piped lines."""

    def __init__(self, chat: Chat, terminal: Terminal, at_end: bool) -> None:
        self._chat, self._terminal = chat, terminal
        self._output = Output(at_end=at_end)
        self._commands = Commands(chat)
        self._lines = Lines(WORDS)

    def run(self) -> int:
        """Until the user leaves; returns the exit code."""
        if self._lines.interactive:
            self._greet()
        while True:
            try:
                entry = self._lines.read()
            except KeyboardInterrupt:
                if not self._lines.interactive:
                    return 130
                self._terminal.note("\nCtrl-D or /exit leaves.")
                continue
            if entry is None:
                return 0
            try:
                code = self._entry(entry) if entry.strip() else 0
            except Leave:
                return 0
            if code and (code != 130 or not self._lines.interactive):
                return code

    def _entry(self, entry: str) -> int:
        try:
            reply = self._commands.run(entry)
            if isinstance(reply, str):
                self._terminal.note(reply, always=True)
                return 0
            return self._answer(self._stream(entry, reply))
        except UsageError as error:
            self._terminal.note(error.line(), always=True)
            return 0

    def _stream(self, entry: str, again: Again | None) -> Stream:
        if again is None:
            return self._chat.stream(entry)
        return self._chat.stream_again(seed=again.seed)

    def _answer(self, stream: Stream) -> int:
        printer = Printer(self._terminal, self._output, self._chat.model)
        with Interrupts() as interrupts, stream:
            for event in stream:
                printer.event(event, stream)
                if interrupts.code:
                    stream.cancel()
            found = stream.generations[0]
            printer.finish(found, self._chat.settings.max_tokens)
        self._terminal.note(turn_line(found))
        self._commands.last = found
        self._commands.count += found.stats.completion_tokens
        return interrupts.code or 0

    def _greet(self) -> None:
        from rich.panel import Panel
        from rich.text import Text

        rows = [*header(self._chat).items(), ("", "/help lists the commands, Ctrl-C stops an answer, Ctrl-D leaves")]
        plain = "\n".join(f"{name:<9}{visible(value)}".strip() for name, value in rows)
        text = Text(plain, no_wrap=False, overflow="fold")
        title = Text("dgemma chat", style="bold")
        self._terminal.show(Panel(text, title=title, title_align="left", border_style="dim", expand=False), plain)


def header(chat: Chat) -> dict[str, str]:
    """What a conversation starts with, by name."""
    origin, settings = chat.model.origin, chat.settings
    given = {name: getattr(settings, name) for name in ("steps", "entropy_bound", "temperature", "seed")}
    numbers: dict[str, Any] = {"max tokens": settings.max_tokens, **{k: v for k, v in given.items() if v is not None}}
    found = {
        "model": origin.model + (f" @ {origin.revision[:8]}" if origin.revision else ""),
        "on": f"{origin.backend}, {origin.device}",
        "with": " · ".join(f"{name} {value}" for name, value in numbers.items()),
    }
    return found | ({"system": settings.system} if settings.system else {})

"""The loop of `dgemma chat`: read an entry, carry out a command or stream an answer, until the end."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from dgemma.chat import Chat
from dgemma.cli.commands import WORDS, Again, Commands, Leave
from dgemma.cli.interrupts import INTERRUPTED, TalkInterrupts
from dgemma.cli.lines import Lines
from dgemma.cli.printer import Output, Printer
from dgemma.cli.report import turn_line
from dgemma.cli.terminal import Terminal
from dgemma.cli.visible import visible
from dgemma.errors import DgemmaError, OutOfMemoryError, StandardOutputError, UsageError
from dgemma.generation import Stream


class Conversation:
    """Runs a chat on a terminal or on piped lines."""

    def __init__(self, chat: Chat, terminal: Terminal, at_end: bool) -> None:
        self._chat, self._terminal = chat, terminal
        self._output = Output(at_end=at_end)
        self._commands = Commands(chat)
        self._lines = Lines(WORDS)
        self._interrupts = TalkInterrupts(self._lines.interactive)
        self._failed = 0

    def run(self) -> int:
        """Until the user leaves; returns the exit code: piped, that of the first line that failed."""
        with self._interrupts:
            if self._lines.interactive:
                self._greet()
            with suppress(Leave):
                while (entry := self._read()) is not None:
                    if code := self._entry(entry):
                        return code
        return 0 if self._lines.interactive else self._failed

    def _read(self) -> str | None:
        """The next entry, empty where it was dropped."""
        try:
            with self._interrupts.entering():
                return self._lines.read()
        except KeyboardInterrupt:
            self._terminal.note("\nCtrl-D or /exit leaves.")
        except UsageError as error:
            self._tell(error)
        return ""

    def _entry(self, entry: str) -> int:
        """Carry out one entry; returns the code to leave with, 0 to go on."""
        if not entry.strip():
            return 0
        try:
            reply = self._commands.run(entry)
            if isinstance(reply, str):
                self._terminal.note(reply, always=True)
            else:
                self._answer(entry, reply)
        except MemoryError:
            self._tell(OutOfMemoryError("Out of memory.", "Try a shorter message, or /clear."))
        except StandardOutputError:
            raise
        except DgemmaError as error:
            self._tell(error)
        return self._code()

    def _tell(self, error: DgemmaError) -> None:
        self._terminal.end_line()
        self._terminal.note(error.line(), always=True)
        self._failed = self._failed or error.exit_code

    def _stream(self, entry: str, again: Again | None) -> Stream:
        if again is None:
            return self._chat.stream(entry)
        return self._chat.stream_again(seed=again.seed)

    def _answer(self, entry: str, again: Again | None) -> None:
        printer = Printer(self._terminal, self._output, self._chat.model)
        with self._interrupts.answering(), self._stream(entry, again) as stream:
            self._cancel_if_asked(stream)
            for event in stream:
                printer.event(event, stream)
                self._cancel_if_asked(stream)
            found = stream.generations[0]
            printer.finish(found, self._chat.settings.max_tokens)
            self._terminal.note(turn_line(found))
        self._commands.last = found
        self._commands.count += found.stats.completion_tokens

    def _cancel_if_asked(self, stream: Stream) -> None:
        if self._interrupts.code:
            stream.cancel()

    def _code(self) -> int:
        """The code of a signal that ends the conversation; on a terminal Ctrl-C does not."""
        code, self._interrupts.code = self._interrupts.code, None
        return 0 if code is None or (code == INTERRUPTED and self._lines.interactive) else code

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

"""Writes docs/cli.md from the command line's own help: python docs/make_cli.py"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.testing import CliRunner

from dgemma.cli import app

TARGET = Path(__file__).with_name("cli.md")
HEAD = "# The command line\n\nWritten by docs/make_cli.py from `--help`; change the help texts, not this page.\n"


def text() -> str:
    """The page."""
    return "\n".join([HEAD, *(_section(words) for words in _commands(typer.main.get_command(app), ()))])


def _commands(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    yield words
    for name, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, (*words, name))


def _section(words: tuple[str, ...]) -> str:
    shown = CliRunner().invoke(app, [*words, "--help"], prog_name="dgemma", env={"COLUMNS": "82"}).stdout
    lines = "\n".join(line.rstrip() for line in shown.strip().splitlines())
    return f"## `{' '.join(('dgemma', *words))}`\n\n```text\n{lines}\n```\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")

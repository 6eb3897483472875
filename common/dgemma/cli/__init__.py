"""The `dgemma` command. Importing it, `--help` and `--version` load no tensor library."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer
from typer._completion_classes import completion_init

from dgemma import __version__
from dgemma.cli import options as o
from dgemma.cli.bench import bench
from dgemma.cli.chat import chat
from dgemma.cli.completion import completion
from dgemma.cli.convert import convert
from dgemma.cli.doctor import doctor
from dgemma.cli.fill import edit, fill
from dgemma.cli.generate import generate
from dgemma.cli.models import app as models
from dgemma.cli.terminal import silence_stdout
from dgemma.cli.texts import TextCommand
from dgemma.cli.trace import app as trace
from dgemma.signals import install

EXIT_CODES = (
    "Exit codes: 0 ok, 1 runtime error, 2 wrong usage, 3 model not found or not downloaded while offline, "
    "4 unsupported model, format, device or option, 5 out of memory, 6 download failed, 130 interrupted, "
    "143 terminated."
)
_COMPLETING = "_DGEMMA_COMPLETE"
_HELP_FLAGS = {"help_option_names": ["-h", "--help"]}

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    add_completion=False,
    context_settings=_HELP_FLAGS,
    epilog=EXIT_CODES,
)
for _command in (generate, chat, fill, edit, convert, doctor, completion):
    app.command(cls=TextCommand, epilog=EXIT_CODES, context_settings=_HELP_FLAGS)(_command)
app.add_typer(trace, name="trace", context_settings=_HELP_FLAGS)
app.add_typer(models, name="models", context_settings=_HELP_FLAGS)
app.add_typer(bench, name="bench", epilog=EXIT_CODES, context_settings=_HELP_FLAGS)


def main() -> None:
    """Run the command line."""
    install()
    if _COMPLETING in os.environ:
        completion_init()
    try:
        app(prog_name="dgemma")
    except OSError as error:  # What no command wrote: help and version.
        silence_stdout()
        print(f"dgemma: Standard output cannot be written: {error.strerror}.", file=sys.stderr)
        sys.exit(1)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dgemma {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and leave.")
    ] = False,
    no_color: o.NoColor = False,
) -> None:
    """DiffusionGemma, a block-diffusion language model, on Apple silicon and NVIDIA cards."""

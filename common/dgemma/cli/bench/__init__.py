"""`dgemma bench`: measure, compare, report, and say what the hardware could reach."""

from __future__ import annotations

import typer

from dgemma.cli.bench.files import compare, report, submit
from dgemma.cli.bench.roofline import roofline
from dgemma.cli.bench.run import run

bench = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Tokens per second, measured the same way everywhere, with quality beside speed.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (run, compare, report, submit, roofline):
    bench.command(context_settings={"help_option_names": ["-h", "--help"]})(command)

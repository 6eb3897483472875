"""`dgemma convert`: a model in any published weight format to a folder that both backends run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dgemma import signals
from dgemma.cli import options as o
from dgemma.cli.interrupts import Abort
from dgemma.cli.jsonline import dump
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.cli.visible import visible
from dgemma.errors import CheckpointError

_Source = Annotated[str, typer.Argument(help="A folder, owner/name[@revision] on the hub, or a .gguf file.")]
_Target = Annotated[Path, typer.Argument(help="The folder to make; it must not exist.")]
_To = Annotated[Literal["hub", "mlx"], typer.Option("--to", help="mlx: packed or plain; hub: plain, for transformers.")]
_Bits = Annotated[int | None, typer.Option(min=2, max=8, help="Width of the experts' weights (affine).")]
_Mode = Annotated[
    Literal["affine", "mxfp4", "nvfp4", "mxfp8"] | None, typer.Option("--mode", help="Format of the experts' weights.")
]
_Group = Annotated[
    int | None, typer.Option("--group-size", help="Weights that share a scale, where they divide a row.")
]
_Recipe = Annotated[
    str | None,
    typer.Option(
        help="default, experts-only, uniform: --bits and --mode fill them in; all-8bit, mixed-4-6: take neither."
    ),
]
_Dtype = Annotated[
    Literal["bf16", "fp16", "fp32"] | None, typer.Option(help="Type of plain weights and affine scales.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done, or why it would be refused.")]
_Verify = Annotated[bool, typer.Option("--verify", help="Read the result again and compare it with the source.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Take up an attempt that was interrupted.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]

# The terminal's own ^C must not start a line below the bar.
_ECHO = 3


def convert(
    source: _Source,
    target: _Target,
    to: _To = "mlx",
    bits: _Bits = None,
    mode: _Mode = None,
    group_size: _Group = None,
    recipe: _Recipe = None,
    dtype: _Dtype = None,
    dry_run: _DryRun = False,
    verify: _Verify = False,
    resume: _Resume = False,
    json: _Json = False,
    offline: o.Offline = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Convert a model. Without --bits, --mode or --recipe every tensor keeps its format as far as one layout can.

    Only one process at a time writes a folder; another one is refused at once, with the exit code 1.
    """
    with exit_codes(verbose), Terminal(quiet or json) as terminal:
        converter = importlib.import_module("dgemma_convert")
        options = converter.Options(to, bits, mode, group_size, recipe, dtype)
        options.check()
        path = _locate(source, offline, terminal)
        if dry_run:
            plan = converter.rehearse(path, target, options, resume=resume)
            terminal.write(dump(_reports().as_dict(plan)) if json else _reports().table(plan))
            return
        with _stopping(terminal, lambda: converter.begun(target)), _progress(terminal, quiet or json) as show:
            report = converter.convert(path, target, options, verify=verify, resume=resume, progress=show)
        if json:
            terminal.write(dump(report))
        for line in _reports().summary(report, target):
            terminal.note(line)


def _reports() -> Any:
    return importlib.import_module("dgemma_convert.report")


def _locate(source: str, offline: bool, terminal: Terminal) -> Path:
    path = Path(source).expanduser()
    try:
        if path.exists():
            return path
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}.") from error
    from dgemma.hub import locate

    return locate(source, offline, terminal.note).folder


@contextmanager
def _stopping(terminal: Terminal, begun: Callable[[], bool]) -> Iterator[None]:
    """A signal ends the conversion where it is and says how to go on; a second one ends the process at once."""
    with Abort() as interrupts:
        try:
            yield
        except KeyboardInterrupt:
            if interrupts.code is None:
                raise
            if begun():
                terminal.note("Interrupted; the same command with --resume goes on from here.", always=True)
            signals.leave(interrupts.code - 128)


@contextmanager
def _progress(terminal: Terminal, quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with bytes and time left on standard error, where that is a terminal that may be decorated."""
    if quiet or terminal.console is None:
        yield lambda done, total, name: None
        return
    from rich.constrain import Constrain
    from rich.live import Live
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    console, bar = terminal.console, Progress(*columns, console=terminal.console)
    task = bar.add_task("", total=None, name="")
    signals.drawing(True)
    try:
        with Live(
            get_renderable=lambda: Constrain(bar.get_renderable(), console.width - _ECHO),
            console=console,
            transient=True,
            refresh_per_second=10,
        ):
            yield lambda done, total, name: bar.update(task, completed=done, total=total, name=visible(name))
    finally:
        signals.drawing(False)

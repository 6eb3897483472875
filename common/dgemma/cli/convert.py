"""`dgemma convert`: a model in any published weight format to a folder that both backends run."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from dgemma.cli import options as o
from dgemma.cli.jsonline import dump
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.cli.visible import visible

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
    typer.Option(help="default, all-8bit, experts-only, mixed-4-6 or uniform; --bits and --mode fill it in."),
]
_Dtype = Annotated[
    Literal["bf16", "fp16", "fp32"] | None, typer.Option(help="Type of plain weights and affine scales.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would be done.")]
_Verify = Annotated[bool, typer.Option("--verify", help="Read the result again and compare it with the source.")]
_Resume = Annotated[bool, typer.Option("--resume", help="Take up an attempt that was interrupted.")]
_Json = Annotated[bool, typer.Option("--json", help="Print the report as JSON.")]


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
    """Convert a model. Without --bits, --mode or --recipe every tensor keeps its format as far as one layout can."""
    with exit_codes(verbose), Terminal(quiet or json) as terminal:
        converter = importlib.import_module("dgemma_convert")
        options = converter.Options(to, bits, mode, group_size, recipe, dtype)
        options.check()
        path = _locate(source, offline, terminal)
        if dry_run:
            plan = converter.preview(path, options)
            terminal.write(dump(_reports().as_dict(plan)) if json else _reports().table(plan))
            return
        with _progress(quiet or json) as show, _hint(terminal):
            report = converter.convert(path, target, options, verify=verify, resume=resume, progress=show)
        if json:
            terminal.write(dump(report))
        for line in _reports().summary(report, target):
            terminal.note(line)


def _reports() -> Any:
    return importlib.import_module("dgemma_convert.report")


def _locate(source: str, offline: bool, terminal: Terminal) -> Path:
    path = Path(source).expanduser()
    if path.exists():
        return path
    from dgemma.hub import locate

    return locate(source, offline, terminal.note).folder


@contextmanager
def _hint(terminal: Terminal) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        terminal.note("Interrupted; the same command with --resume goes on from here.", always=True)
        raise


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int, str], None]]:
    """A bar with bytes and time left on standard error, where that is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    console = Console(stderr=True)
    columns = (
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[name]}", markup=False),
    )
    with Progress(*columns, console=console, transient=True, disable=quiet or not console.is_terminal) as bar:
        task = bar.add_task("", total=None, name="")
        yield lambda done, total, name: bar.update(task, completed=done, total=total, name=visible(name))

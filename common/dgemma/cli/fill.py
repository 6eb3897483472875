"""`dgemma fill` and `dgemma edit`: write into a text whose other parts stay as they are."""

from __future__ import annotations

import difflib
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgemma.cli import options as o
from dgemma.cli.loading import load_model
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.errors import UsageError

if TYPE_CHECKING:
    from dgemma.infill import Filled
    from dgemma.textfile import TextFile

_Fields = dict[str, Any]
Source = Annotated[str, typer.Argument(metavar="FILE|-", help="The text; - reads standard input.", show_default=False)]
Target = Annotated[Path, typer.Argument(metavar="FILE", help="The file to edit.", show_default=False)]
Instruction = Annotated[
    str | None, typer.Option("-i", "--instruction", help="The prompt that the text answers.", show_default=False)
]
Lengths = Annotated[
    str | None, typer.Option("--lengths", metavar="A-B|N,N", help="Lengths to try where none is given, in tokens.")
]
Lines = Annotated[str, typer.Option("--lines", metavar="A:B", help="First and last line to rewrite, from 1.")]
Warm = Annotated[bool, typer.Option("--warm-start", help="Start from the old lines instead of noise.")]
Diff = Annotated[bool, typer.Option("--diff", help="Print a diff and leave the file alone (the default).")]
InPlace = Annotated[bool, typer.Option("--in-place", help="Change the file.")]


def fill(
    source: Source,
    instruction: Instruction = None,
    lengths: Lengths = None,
    model: o.Model = "demo",
    system: o.System = None,
    seed: o.Seed = None,
    backend: o.BackendName = "auto",
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    steps: o.Steps = None,
    entropy_bound: o.EntropyBound = None,
    temp: o.Temp = None,
    temp_range: o.TempRange = None,
    canvas: o.Canvas = None,
    raw: o.Raw = False,
    json: o.Json = False,
    offline: o.Offline = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Fill every <fill> or <fill:N> (N tokens) of a text; the rest stays as it is, byte for byte."""
    with exit_codes(verbose):
        file = _stdin() if source == "-" else _read(Path(source))
        settings: _Fields = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        settings |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas}
        settings |= {"system": system, "raw": raw}
        tried = parse_lengths(lengths)
        origin = {"device": device, "dtype": dtype, "offline": offline}
        with Terminal(quiet or json) as terminal, load_model(model, backend, origin, terminal) as loaded:
            terminal.progress("filling")
            found = loaded.fill(file.text, instruction, tried, **settings)
            terminal.data(_json(found) if json else file.encode(found.join(file.adapt)))


def edit(
    target: Target,
    lines: Lines,
    instruction: Instruction = None,
    diff: Diff = False,
    in_place: InPlace = False,
    warm_start: Warm = False,
    lengths: Lengths = None,
    model: o.Model = "demo",
    system: o.System = None,
    seed: o.Seed = None,
    backend: o.BackendName = "auto",
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    steps: o.Steps = None,
    entropy_bound: o.EntropyBound = None,
    temp: o.Temp = None,
    temp_range: o.TempRange = None,
    canvas: o.Canvas = None,
    offline: o.Offline = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Rewrite some lines of a file and show a diff; the other lines stay as they are, byte for byte."""
    with exit_codes(verbose):
        if diff and in_place:
            raise UsageError("--diff and --in-place exclude one another.", "Choose one.")
        file, span = _read(target), parse_lines(lines)
        settings: _Fields = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        settings |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas, "system": system}
        tried = parse_lengths(lengths)
        origin = {"device": device, "dtype": dtype, "offline": offline}
        with Terminal(quiet) as terminal, load_model(model, backend, origin, terminal) as loaded:
            terminal.progress("editing")
            found = loaded.edit(file.text, span, instruction, tried, warm_start, **settings)
            text = found.join(file.adapt)
            if in_place:
                _write(target, file, text)
            for line in _diff(target, file.text, text):
                terminal.note(line) if in_place else terminal.write(line + "\n")


def parse_lengths(text: str | None) -> list[int] | None:
    """Parse A-B or N,N,...; raises UsageError."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    try:
        found = list(range(int(first), int(last) + 1)) if dash else [int(each) for each in text.split(",")]
    except ValueError:
        found = []
    if not found:
        raise UsageError(f"--lengths takes A-B or N,N,..., not {text!r}.", "For example: --lengths 1-16")
    return found


def parse_lines(text: str) -> tuple[int, int]:
    """Parse A:B or A; raises UsageError."""
    first, _, last = text.partition(":")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise UsageError(f"--lines takes A:B, not {text!r}.", "For example: --lines 3:5") from None


def _json(found: Filled) -> bytes:
    from dataclasses import asdict

    from dgemma.cli.jsonline import dump

    fields = {"schema": 1, "text": found.text, "fills": found.fills, "tokens": found.tokens, "entropy": found.entropy}
    origin = {"seed": found.seed, "model": found.origin.model, "revision": found.origin.revision}
    backend = {"backend": found.origin.backend, "device": found.origin.device}
    return dump(fields | origin | backend | {"stats": asdict(found.stats)}).encode()


def _diff(path: Path, before: str, after: str) -> list[str]:
    """A unified diff, line by line, without line ends."""
    old, new = before.splitlines(), after.splitlines()
    return list(difflib.unified_diff(old, new, str(path), str(path), lineterm=""))


def _read(path: Path) -> TextFile:
    if path == Path():
        raise UsageError("A file is needed.", "Name one, or - for standard input.")
    from dgemma.textfile import read

    return read(path)


def _stdin() -> TextFile:
    from dgemma.textfile import TextFile

    return TextFile.of(sys.stdin.buffer.read())


def _write(path: Path, file: TextFile, text: str) -> None:
    from dgemma.outputs import write_file

    write_file(path, file.encode(text))

"""`dgemma fill` and `dgemma edit`: write into a text whose other parts stay as they are."""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from dgemma.cli import options as o
from dgemma.cli.loading import load_model, model_files
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.errors import UsageError

if TYPE_CHECKING:
    from dgemma.events import Block, Draft
    from dgemma.infill import Filled
    from dgemma.textfile import TextFile
    from dgemma.tokenizer import Tokenizer

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
InPlace = Annotated[bool, typer.Option("--in-place", help="Change the file; a diff goes to standard error.")]


def fill(
    source: Source,
    instruction: Instruction = None,
    lengths: Lengths = None,
    in_place: InPlace = False,
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
    quality: o.Quality = None,
    raw: o.Raw = False,
    json: o.Json = False,
    jsonl: o.Jsonl = False,
    stats: o.Stats = False,
    offline: o.Offline = False,
    no_color: o.NoColor = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    kernels: o.Kernels = "auto",
    self_conditioning: o.SelfConditioning = "auto",
) -> None:
    """Fill every <fill> or <fill:N> (N tokens) of a text; the rest stays as it is, byte for byte."""
    with exit_codes(verbose):
        check_outputs(json, jsonl)
        if in_place and source == "-":
            raise UsageError("Standard input cannot be changed in place.", "Name a file, or leave --in-place out.")
        path = None if source == "-" else Path(source)
        file = _stdin() if path is None else _read(path, in_place, model)
        settings: _Fields = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        settings |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas}
        settings |= {"system": system, "raw": raw, "quality": quality}
        tried = parse_lengths(lengths)
        origin: _Fields = {"device": device, "dtype": dtype, "offline": offline}
        origin |= {"kernels": kernels, "self_conditioning": self_conditioning}
        with Terminal(quiet or json or jsonl) as terminal, load_model(model, backend, origin, terminal) as loaded:
            terminal.progress("filling")
            listen = _listener(terminal, loaded.tokenizer, jsonl)
            found = loaded.fill(file.text, instruction, tried, listen=listen, **settings)
            if path is not None and in_place:
                _write(path, file, found.join(file.adapt), terminal)
            if json or jsonl:
                terminal.write(_line(found, "finish" if jsonl else None))
            elif not in_place:
                terminal.data(file.encode(found.join(file.adapt)))
            _tell(found, stats, terminal)


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
    quality: o.Quality = None,
    json: o.Json = False,
    jsonl: o.Jsonl = False,
    stats: o.Stats = False,
    offline: o.Offline = False,
    no_color: o.NoColor = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    kernels: o.Kernels = "auto",
    self_conditioning: o.SelfConditioning = "auto",
) -> None:
    """Rewrite some lines of a file and show a diff; the other lines stay as they are, byte for byte."""
    with exit_codes(verbose):
        check_outputs(json, jsonl)
        if diff and (in_place or json or jsonl):
            raise UsageError("--diff excludes --in-place, --json and --jsonl.", "Choose one.")
        file, span = _read(target, in_place, model), parse_lines(lines)
        settings: _Fields = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        settings |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas}
        settings |= {"system": system, "quality": quality}
        tried = parse_lengths(lengths)
        origin: _Fields = {"device": device, "dtype": dtype, "offline": offline}
        origin |= {"kernels": kernels, "self_conditioning": self_conditioning}
        with Terminal(quiet or json or jsonl) as terminal, load_model(model, backend, origin, terminal) as loaded:
            terminal.progress("editing")
            listen = _listener(terminal, loaded.tokenizer, jsonl)
            found = loaded.edit(file.text, span, instruction, tried, warm_start, listen=listen, **settings)
            text = found.join(file.adapt)
            if in_place:
                _write(target, file, text, terminal)
            if json or jsonl:
                terminal.write(_line(found, "finish" if jsonl else None))
            elif not in_place:
                terminal.write(_diff(target, file.text, text))
            _tell(found, stats, terminal)


def check_outputs(json: bool, jsonl: bool) -> None:
    """Raise UsageError where both are asked for."""
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude one another.", "Choose one.")


def parse_lengths(text: str | None) -> Sequence[int] | None:
    """Parse A-B or N,N,...; raises UsageError."""
    if text is None:
        return None
    first, dash, last = text.partition("-")
    found: Sequence[int]
    try:
        found = range(int(first), int(last) + 1) if dash else [int(each) for each in text.split(",")]
    except ValueError:
        found = ()
    if not len(found):
        raise UsageError(f"--lengths takes A-B or N,N,..., not {text!r}.", "For example: --lengths 1-16")
    return found


def parse_lines(text: str) -> tuple[int, int]:
    """Parse A:B or A; raises UsageError."""
    first, _, last = text.partition(":")
    try:
        return int(first), int(last or first)
    except ValueError:
        raise UsageError(f"--lines takes A:B, not {text!r}.", "For example: --lines 3:5") from None


def _line(found: Filled, event: str | None) -> str:
    """The object of --json or, with the name of an event, the last line of --jsonl."""
    from dataclasses import asdict

    from dgemma.cli.jsonline import dump

    fields: _Fields = {"schema": 1} if event is None else {"event": event, "schema": 1}
    fields |= {
        "text": found.text,
        "fills": found.fills,
        "empty": found.empty,
        "tokens": found.tokens,
        "entropy": found.entropy,
    }
    fields |= {"seed": found.seed, "model": found.origin.model, "revision": found.origin.revision}
    fields |= {"backend": found.origin.backend, "device": found.origin.device}
    return dump(fields | {"stats": asdict(found.stats)})


def _listener(terminal: Terminal, tokenizer: Tokenizer, jsonl: bool) -> Callable[[Draft | Block], object]:
    """Prints a line of --jsonl an event; `candidate` counts the lengths that are tried at once."""

    def listen(event: Draft | Block) -> None:
        if jsonl:
            from dgemma.cli.jsonline import dump
            from dgemma.cli.report import as_event

            fields = as_event(event, None, tokenizer) | {"text": tokenizer.decode(event.tokens)}
            terminal.write(dump(fields | {"candidate": event.handle}))

    return listen


def _tell(found: Filled, stats: bool, terminal: Terminal) -> None:
    for number in found.empty:
        terminal.note(f"Warning: gap {number} was filled with nothing.", always=True)
    if stats:
        from dgemma.cli.report import fill_line

        terminal.note(fill_line(found), always=True)


def _diff(path: Path, before: str, after: str) -> str:
    """A unified diff that `patch` understands."""
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", text) for text in (before, after))
    found = difflib.unified_diff(old, new, str(path), str(path))
    return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in found)


def _read(path: Path, in_place: bool, model: str) -> TextFile:
    from dgemma.outputs import check_distinct
    from dgemma.textfile import check_replaceable, read

    if path == Path():
        raise UsageError("A file is needed.", "Name one, or - for standard input.")
    file = read(path)
    if in_place:
        check_replaceable(path)
        check_distinct(path, *model_files(model))
    return file


def _stdin() -> TextFile:
    from dgemma.textfile import TextFile

    return TextFile.of(sys.stdin.buffer.read())


def _write(path: Path, file: TextFile, text: str, terminal: Terminal) -> None:
    from dgemma.textfile import replace

    replace(path, file, text)
    for line in _diff(path, file.text, text).splitlines():
        terminal.note(line)

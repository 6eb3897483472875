"""`dgemma bench run`: measure engines on a profile."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dgemma.cli import options as common
from dgemma.cli.bench import options as o
from dgemma.cli.interrupts import Interrupts
from dgemma.cli.loading import model_files
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.errors import UsageError
from dgemma.outputs import check_output, write_file, writing

if TYPE_CHECKING:
    from dgemma.bench.engines import Engine, Target
    from dgemma.bench.prompts import Profile
    from dgemma.bench.row import Row
    from dgemma.bench.runner import Hooks

_SUFFIXES = (".jsonl", ".json", ".csv", ".md")


def run(
    model: common.Model = "demo",
    engine: o.Engines = None,
    backend: common.BackendName = "auto",
    device: common.Device = "auto",
    dtype: common.Dtype = None,
    profile: o.Profile = "chat",
    mode: o.Mode = None,
    repetitions: o.Repetitions = 5,
    no_warm_up: o.NoWarmUp = False,
    max_tokens: o.MaxTokens = None,
    prompts: o.Prompts = None,
    seed: o.Seed = 0,
    batch: o.Batch = None,
    prompt_tokens: o.PromptTokens = None,
    canvas: o.Canvas = None,
    steps: o.Steps = None,
    entropy_bound: o.Bound = None,
    form: o.Format = "table",
    output: o.Output = None,
    offline: o.Offline = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
) -> None:
    """Measure. Finished rows survive an interrupt; an engine that is not installed is skipped and named."""
    from dgemma.bench.engines import Target, parse
    from dgemma.bench.environment import environment
    from dgemma.bench.profiles import Sweep, points
    from dgemma.bench.prompts import load
    from dgemma.bench.runner import Run

    with exit_codes(verbose), Terminal(quiet) as terminal, ExitStack() as stack:
        if output is not None:
            _check_output(output, profile, model)
        writer = _Writer(form, output, terminal)
        loaded = load(profile)
        chosen = replace(loaded, prompts=loaded.prompts[:prompts])
        sweep = Sweep(
            steps=o.numbers(steps, int, "--steps"),
            entropy_bounds=o.numbers(entropy_bound, float, "--entropy-bound"),
            canvas_lengths=o.numbers(canvas, int, "--canvas"),
            prompt_tokens=o.numbers(prompt_tokens, int, "--prompt-tokens"),
            batches=o.numbers(batch, int, "--batch"),
        )
        visited = points(chosen, sweep, seed, mode, max_tokens)
        default = None if backend == "auto" else backend
        wanted = [parse(each) for each in engine or ["dgemma"]]
        targets = [
            Target(name, argument or (default if name == "dgemma" else None), model, device, dtype, offline)
            for name, argument in wanted
        ]
        standard = sweep.is_empty and _is_standard(chosen, loaded, mode, max_tokens, repetitions, no_warm_up)
        engines, seconds = _open(targets, terminal, stack)
        measurement = Run(engines, chosen, repetitions, not no_warm_up, standard, environment(sys.argv), seconds)
        with Interrupts() as interrupts:
            measurement.measure(visited, writer.hooks(interrupts))
        writer.finish()
        if interrupts.code:
            terminal.note(f"Stopped; {len(writer.rows)} finished rows are kept.", always=True)
        raise typer.Exit(interrupts.code or (0 if writer.rows else 1))


class _Writer:
    """Rows on their way out: one by one into a .jsonl file or as JSON lines, the other formats at the end."""

    def __init__(self, form: str, output: Path | None, terminal: Terminal) -> None:
        self._form, self._output, self._terminal = form, output, terminal
        self.rows: list[Row] = []

    def hooks(self, interrupts: Interrupts) -> Hooks:
        from dgemma.bench.runner import Hooks

        return Hooks(
            row=self.take,
            note=lambda line: self._terminal.note(line, always=True),
            progress=self._terminal.progress,
            stopped=lambda: interrupts.code is not None,
        )

    def take(self, row: Row) -> None:
        self.rows.append(row)
        if self._output is not None and self._output.suffix == ".jsonl":
            with writing(self._output), self._output.open("a", encoding="utf-8") as file:
                file.write(row.dump())
        if self._form == "jsonl":
            self._terminal.write(row.dump())
        if row.busy and row.spread is not None:
            self._terminal.note(
                f"Warning: repetitions of {row.name} differ by {row.spread:.0%}; the machine does something else. "
                "Compare only what was measured side by side.",
                always=True,
            )

    def finish(self) -> None:
        from dgemma.bench.formats import render

        if self.rows and self._form != "jsonl":
            self._terminal.write(render(self.rows, self._form))
        if self._output is not None and self.rows and self._output.suffix != ".jsonl":
            write_file(self._output, render(self.rows, self._output.suffix.removeprefix(".")).encode("utf-8"))


def _check_output(path: Path, profile: str, model: str) -> None:
    """Raise UsageError or WriteError before hours are spent on rows that cannot be kept."""
    if path.suffix not in _SUFFIXES:
        raise UsageError(
            f"-o writes no {path.suffix or 'file without a suffix'}.", f"It writes {', '.join(_SUFFIXES)}."
        )
    check_output(path, Path(profile), *model_files(model))


def _open(targets: list[Target], terminal: Terminal, stack: ExitStack) -> tuple[dict[str, Engine], dict[str, float]]:
    """Every engine that can be opened, in a process of its own where there are several or where it is a peer's."""
    import time

    from dgemma.bench.engines import EngineMissingError, open_engine
    from dgemma.bench.remote import Remote
    from dgemma.errors import UnsupportedError

    engines: dict[str, Engine] = {}
    seconds: dict[str, float] = {}
    for target in targets:
        terminal.progress(f"loading {target.model} into {target.spelling}")
        start = time.perf_counter()
        try:
            apart = len(targets) > 1 or target.is_foreign
            engine: Engine = Remote(target) if apart else open_engine(target)
        except EngineMissingError as error:
            terminal.note(f"Skipped {target.spelling}: {error.line()}", always=True)
            continue
        stack.callback(engine.close)
        engines[target.spelling], seconds[target.spelling] = engine, time.perf_counter() - start
    if not engines:
        raise UnsupportedError("No engine is left to measure.")
    return engines, seconds


def _is_standard(
    chosen: Profile, loaded: Profile, mode: str | None, max_tokens: int | None, repetitions: int, cold: bool
) -> bool:
    """Whether a run is its profile's own protocol, so that its row may stand beside others'."""
    whole = chosen.prompts == loaded.prompts and mode in (None, loaded.mode)
    return whole and max_tokens is None and repetitions >= 5 and not cold

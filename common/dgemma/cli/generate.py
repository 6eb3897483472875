"""`dgemma generate`: one prompt, one answer."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from dgemma.cli import options as o
from dgemma.cli.interrupts import Interrupts
from dgemma.cli.loading import checked, load_model, model_files
from dgemma.cli.prompt import read_prompt, read_start
from dgemma.cli.recording import recorder
from dgemma.cli.terminal import Terminal, check_show, exit_codes
from dgemma.errors import UsageError
from dgemma.outputs import check_output

if TYPE_CHECKING:
    from dgemma.api import Model

_Fields = dict[str, Any]


def generate(
    prompt: o.Prompt = None,
    prompt_option: o.PromptOption = None,
    files: o.Files = None,
    system: o.System = None,
    model: o.Model = "demo",
    max_tokens: o.MaxTokens = 1024,
    seed: o.Seed = None,
    backend: o.BackendName = "auto",
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    mode: o.Mode = "diffusion",
    steps: o.Steps = None,
    entropy_bound: o.EntropyBound = None,
    temp: o.Temp = None,
    temp_range: o.TempRange = None,
    canvas: o.Canvas = None,
    stop: o.Stop = None,
    think: o.Think = False,
    show: o.Show = "auto",
    json: o.Json = False,
    jsonl: o.Jsonl = False,
    stats: o.Stats = False,
    raw: o.Raw = False,
    offline: o.Offline = False,
    no_color: o.NoColor = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    trace: o.Trace = None,
    kernels: o.Kernels = "auto",
    self_conditioning: o.SelfConditioning = "auto",
    draft_steps: o.DraftSteps = None,
    quality: o.Quality = None,
    warm_start: o.WarmStart = None,
) -> None:
    """Answer one prompt. Only the answer goes to standard output.

    \b
    Examples:
      dgemma generate "add 12+30" --seed 1 --stats
      git diff | dgemma generate "Write a commit message" -m dgemma:4bit
      dgemma generate -f notes.txt "Summarize this" --json
    """
    with exit_codes(verbose):
        _check_output(json, jsonl, show)
        sampling: _Fields = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        sampling |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas, "quality": quality}
        sampling |= {"mode": mode, "draft_steps": o.draft_steps(draft_steps), "warm_start": read_start(warm_start)}
        wording: _Fields = {"system": system, "think": think, "raw": raw, "stop": tuple(stop or ())}
        settings = checked({**sampling, **wording, "max_tokens": max_tokens})
        _check_trace(trace, model, [*(files or []), *([warm_start] if warm_start else [])])
        text = read_prompt(prompt, prompt_option, files or [])
        source: _Fields = {"device": device, "dtype": dtype, "offline": offline}
        source |= {"kernels": kernels, "self_conditioning": self_conditioning}
        output = {"json": json, "jsonl": jsonl, "stats": stats, "at_end": show == "none"}
        with Terminal(quiet or json or jsonl, show) as terminal, load_model(model, backend, source, terminal) as loaded:
            if verbose:
                terminal.note(f"{loaded.origin}", always=True)
            code = _answer(loaded, text, settings, output, terminal, trace)
        raise typer.Exit(code)


def _check_output(json: bool, jsonl: bool, show: str) -> None:
    if json and jsonl:
        raise UsageError("--json and --jsonl exclude one another.", "Choose one.")
    if (json or jsonl) and show != "auto":
        raise UsageError(f"--show {show} has no meaning with --json or --jsonl.", "Leave it out.")
    check_show(show)


def _check_trace(trace: Path | None, model: str, inputs: list[Path]) -> None:
    if trace is not None:
        check_output(trace, *inputs, *model_files(model))


def _answer(
    model: Model, text: str, settings: _Fields, output: dict[str, bool], terminal: Terminal, trace: Path | None
) -> int:
    from dgemma.cli.printer import Output, Printer

    printer = Printer(terminal, Output(**output), model)
    with Interrupts() as interrupts, recorder(trace) as record, model.stream(text, **settings) as stream:
        record.start(model, stream.seeds[0], settings)
        for event in stream:
            record.event(event)
            printer.event(event, stream)
            if interrupts.code:
                stream.cancel()
        printer.finish(stream.generations[0], settings["max_tokens"])
    return interrupts.code or 0

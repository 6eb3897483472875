"""`dgemma chat`: a conversation."""

from __future__ import annotations

from typing import Any

import typer

from dgemma.cli import options as o
from dgemma.cli.loading import checked, load_model
from dgemma.cli.terminal import Terminal, check_show, exit_codes


def chat(
    system: o.System = None,
    model: o.Model = "demo",
    max_tokens: o.MaxTokens = 1024,
    seed: o.Seed = None,
    backend: o.BackendName = "auto",
    device: o.Device = "auto",
    dtype: o.Dtype = None,
    mode: o.Mode = "diffusion",
    draft_steps: o.DraftSteps = None,
    quality: o.Quality = None,
    steps: o.Steps = None,
    entropy_bound: o.EntropyBound = None,
    temp: o.Temp = None,
    temp_range: o.TempRange = None,
    canvas: o.Canvas = None,
    stop: o.Stop = None,
    think: o.Think = False,
    show: o.Show = "auto",
    offline: o.Offline = False,
    no_color: o.NoColor = False,
    quiet: o.Quiet = False,
    verbose: o.Verbose = False,
    kernels: o.Kernels = "auto",
    self_conditioning: o.SelfConditioning = "auto",
) -> None:
    """Talk to the model; it remembers the conversation. Piped standard input is one turn a line.

    /help lists the commands: another answer, taking a turn back, saving, settings.

    \b
    Examples:
      dgemma chat -m dgemma:4bit -s "Answer briefly."
      printf 'add 12+30\\nsort gkaqz\\n' | dgemma chat -q
    """
    with exit_codes(verbose):
        check_show(show)
        sampling: dict[str, Any] = {"seed": seed, "steps": steps, "entropy_bound": entropy_bound, "temperature": temp}
        sampling |= {"temperature_range": o.temperature_range(temp_range), "canvas_length": canvas}
        sampling |= {"mode": mode, "draft_steps": o.draft_steps(draft_steps), "quality": quality}
        wording: dict[str, Any] = {"system": system, "think": think, "stop": tuple(stop or ())}
        settings = checked({**sampling, **wording, "max_tokens": max_tokens})
        source: dict[str, Any] = {"device": device, "dtype": dtype, "offline": offline}
        source |= {"kernels": kernels, "self_conditioning": self_conditioning}
        with Terminal(quiet, show) as terminal, load_model(model, backend, source, terminal) as loaded:
            from dgemma.cli.conversation import Conversation

            terminal.close()
            with loaded.chat(**settings) as talk:
                code = Conversation(talk, terminal, at_end=show == "none").run()
        raise typer.Exit(code)

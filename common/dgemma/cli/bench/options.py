"""The flags of `dgemma bench`: their spellings, types and help."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from typer import Argument, Option

from dgemma.errors import UsageError

T = TypeVar("T", int, float)

Engines = Annotated[
    list[str] | None,
    Option(
        "--engine",
        help="What to measure; repeatable, engines then take turns: dgemma[:mlx|cuda][,ar|,verified], transformers, "
        "mlx-vlm, ar-transformers[:MODEL], ar-mlx[:MODEL], server:URL.",
        show_default="dgemma",
    ),
]
Profile = Annotated[
    str, Option("--profile", help="Prompts: chat, code, math, json, long, fixed, demo, or a .jsonl file.")
]
Mode = Annotated[
    Literal["adaptive", "fixed"] | None,
    Option("--mode", help="adaptive: the checkpoint's stop rule; fixed: --steps steps a canvas, no stop of any kind."),
]
Repetitions = Annotated[int, Option("-r", "--repetitions", min=1, help="Measured repetitions behind the warm-up.")]
NoWarmUp = Annotated[bool, Option("--no-warm-up", help="Measure the first run too.")]
MaxTokens = Annotated[
    int | None, Option("-n", "--max-tokens", min=1, help="Longest answer; the profile's where absent.")
]
Prompts = Annotated[int | None, Option("--prompts", min=1, help="Only the first prompts of the profile.")]
Seed = Annotated[int, Option("--seed", min=0, help="Seed of every run.")]
Batch = Annotated[str | None, Option("--batch", metavar="N,..", help="Prompts at once.")]
PromptTokens = Annotated[
    str | None, Option("--prompt-tokens", metavar="N,..", help="Cut or repeat prompts to this length.")
]
Canvas = Annotated[str | None, Option("--canvas", metavar="N,..", help="Tokens a canvas.")]
Steps = Annotated[str | None, Option("--steps", metavar="N,..", help="Most denoising steps a canvas; fixed: how many.")]
Bound = Annotated[str | None, Option("--entropy-bound", metavar="X,..", help="Entropy (nats) accepted a step.")]
Format = Annotated[Literal["table", "md", "csv", "json", "jsonl"], Option("--format", help="How rows are printed.")]
Output = Annotated[
    Path | None,
    Option("-o", "--output", help="Append every finished row to this .jsonl file; .json, .csv and .md are rewritten."),
]
Offline = Annotated[bool, Option("--offline", help="Never use the network.")]
Quiet = Annotated[bool, Option("-q", "--quiet", help="Nothing on standard error but errors.")]
Verbose = Annotated[bool, Option("-v", "--verbose", help="Tracebacks with errors.")]

A = Annotated[str, Argument(help="Rows: FILE, or FILE::ENGINE for one engine of it.")]
B = Annotated[str, Argument(help="The rows to hold against A.")]
Files = Annotated[list[Path], Argument(help="Files of rows.")]
Report = Annotated[Path, Option("-o", "--output", help="The Markdown file; plots lie beside it.")]
Submission = Annotated[Path | None, Option("-o", "--output", help="The file to write.", show_default="by machine")]

Shape = Annotated[
    str | None, Option("-m", "--model", help="Alias, repository or folder; the 26B release's shape where absent.")
]
Machine = Annotated[str | None, Option("--machine", help="A named machine; this one where absent.")]
WeightFormat = Annotated[
    str | None,
    Option("--weights", help="As if stored as bf16, fp8, nvfp4, int4-g32, mlx-8bit, mlx-4bit; else as it is stored."),
]
Context = Annotated[int, Option("--context", min=0, help="Tokens before the canvas.")]
RowFile = Annotated[Path | None, Option("--row", help="Rows whose share of the floor is to be shown.")]
Json = Annotated[bool, Option("--json", help="Print one JSON object.")]


def numbers(text: str | None, kind: Callable[[str], T], flag: str) -> list[T]:
    """Parse N,N,..; nothing where the flag is absent."""
    if text is None:
        return []
    try:
        return [kind(each) for each in text.split(",")]
    except ValueError:
        raise UsageError(f"{flag} takes numbers with commas between them, not {text!r}.") from None

"""The flags of `dgemma generate`: their spellings, types and help."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from dgemma.errors import UsageError


def known_models(incomplete: str) -> list[str]:
    """For completion: the demo, aliases and cached models that begin with `incomplete`."""
    from dgemma.aliases import aliases
    from dgemma.cached import cached_models

    names = ["demo", *aliases(), *dict.fromkeys(each.repo for each in cached_models())]
    return [name for name in names if name.startswith(incomplete)]


def _no_color(wanted: bool) -> bool:
    if wanted:
        os.environ["NO_COLOR"] = "1"
    return wanted


Prompt = Annotated[str | None, Argument(help="What to answer; - reads standard input.", show_default=False)]
PromptOption = Annotated[
    str | None, Option("-p", "--prompt", metavar="TEXT", help="The prompt, as a flag.", show_default=False)
]
Files = Annotated[
    list[Path] | None, Option("-f", "--file", metavar="FILE", help="Put a file's text before the prompt; repeatable.")
]
System = Annotated[str | None, Option("-s", "--system", metavar="TEXT", help="System message.", show_default=False)]
Model = Annotated[
    str,
    Option(
        "-m",
        "--model",
        metavar="MODEL",
        envvar="DGEMMA_MODEL",
        help="Alias, owner/name[@revision] or folder.",
        autocompletion=known_models,
    ),
]
MaxTokens = Annotated[int, Option("-n", "--max-tokens", metavar="N", min=1, help="Longest answer in tokens.")]
Seed = Annotated[
    int | None, Option(metavar="N", min=0, help="Seed of all randomness; drawn and reported where absent.")
]
BackendName = Annotated[str, Option("--backend", metavar="NAME", envvar="DGEMMA_BACKEND", help="auto, mlx or cuda.")]
Device = Annotated[Literal["auto", "cpu", "gpu"], Option("--device", help="Where to compute.")]
Dtype = Annotated[
    Literal["float32", "float16", "bfloat16"] | None,
    Option(help="Weight type; the checkpoint's on an accelerator, float32 on a CPU where absent."),
]
Mode = Annotated[Literal["diffusion", "ar", "verified", "hybrid"], Option("--mode", help="How to decode.")]
Steps = Annotated[int | None, Option(metavar="N", min=1, help="Most denoising steps a canvas.")]
EntropyBound = Annotated[
    float | None, Option(metavar="X", min=0.0, help="Entropy (nats) accepted a step; higher is faster.")
]
Temp = Annotated[
    float | None,
    Option("--temp", metavar="T", help="Constant temperature, 0.001 to 1000; 0 takes the likeliest token."),
]
TempRange = Annotated[
    str | None,
    Option("--temp-range", metavar="MIN,MAX", help="Temperature falls from MAX to MIN; 0.001 to 1000, MIN also 0."),
]
Canvas = Annotated[
    int | None, Option("--canvas", metavar="N", min=1, help="Tokens a canvas; the model's own where absent.")
]
Stop = Annotated[
    list[str] | None, Option("--stop", metavar="TEXT", help="End the answer before this text; repeatable.")
]
Think = Annotated[bool, Option("--think/--no-think", help="Let the model reason first (on standard error).")]
Show = Annotated[
    Literal["auto", "live", "blocks", "none"],
    Option(help="auto: the canvas, if on a terminal; live: always; blocks: text as it is final; none: all at the end."),
]
Json = Annotated[bool, Option("--json", help="Print one JSON object instead of the answer.")]
Jsonl = Annotated[bool, Option("--jsonl", help="Print one JSON event a line: draft, block, finish.")]
Stats = Annotated[bool, Option("--stats", help="Print a line of statistics on standard error.")]
Raw = Annotated[bool, Option("--raw", help="Use the prompt without the chat template; keep markers in the text.")]
Offline = Annotated[bool, Option("--offline", help="Never use the network.")]
NoColor = Annotated[
    bool, Option("--no-color", callback=_no_color, is_eager=True, help="No colour and no drawing; as NO_COLOR does.")
]
Quiet = Annotated[bool, Option("-q", "--quiet", help="Nothing on standard error but errors.")]
Verbose = Annotated[bool, Option("-v", "--verbose", help="Say what runs where; tracebacks with errors.")]
Trace = Annotated[Path | None, Option("--trace", metavar="FILE", help="Record every step for dgemma trace.")]
Kernels = Annotated[
    Literal["auto", "reference"], Option(help="The fastest kernels that run here, or the plain ones that define them.")
]
SelfConditioning = Annotated[
    Literal["auto", "exact", "sparse"],
    Option(help="The whole product, or only the rows that hold the mass; auto: sparse where that is within rounding."),
]
DraftSteps = Annotated[
    str | None, Option("--draft-steps", metavar="N|auto", help="Denoising steps of a draft in modes verified, hybrid.")
]
Quality = Annotated[
    Literal["fast", "balanced", "reference"] | None,
    Option("--quality", help="Finish canvases sooner at some cost in accuracy; reference changes nothing."),
]
WarmStart = Annotated[
    Path | None, Option("--warm-start", metavar="FILE", help="Start the answer's canvases from this text, not noise.")
]


def draft_steps(text: str | None) -> int | str | None:
    """A number or auto."""
    return int(text) if text is not None and text.isdecimal() else text


def temperature_range(text: str | None) -> tuple[float, float] | None:
    """Parse MIN,MAX; raises UsageError."""
    try:
        return None if text is None else two_numbers(text)
    except ValueError:
        raise UsageError(f"--temp-range takes MIN,MAX, not {text!r}.", "For example: --temp-range 0.4,0.8") from None


def two_numbers(text: str) -> tuple[float, float]:
    """Parse two numbers with a comma between them; raises ValueError."""
    low, high = map(float, text.split(","))
    return low, high

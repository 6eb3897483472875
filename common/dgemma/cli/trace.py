"""`dgemma trace show|html|stats`: look into a recorded generation."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from dgemma.cli import options as o
from dgemma.cli.terminal import Terminal, exit_codes

if TYPE_CHECKING:
    from dgemma.events import Draft
    from dgemma.tokenizer import Tokenizer
    from dgemma.trace import Trace

Source = Annotated[Path, typer.Argument(metavar="FILE", help="A trace.", show_default=False)]
Page = Annotated[Path, typer.Option("-o", "--output", metavar="PAGE", help="Where to write the page.")]
Delay = Annotated[float, typer.Option("--delay", min=0.0, help="Seconds a step, on a terminal.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]

app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="Look into a generation recorded with --trace.")


@app.command()
def show(source: Source, delay: Delay = 0.15, no_color: o.NoColor = False, verbose: o.Verbose = False) -> None:
    """Replay a trace: on a terminal in place, otherwise as text, a step a line."""
    with exit_codes(verbose), Terminal(show="auto") as terminal:
        from dgemma.events import Draft

        trace = _read(source, terminal)
        spelling = Spelling(trace)
        for event in trace.events:
            if isinstance(event, Draft) and terminal.console is not None:
                terminal.canvas(event, cast("Tokenizer", spelling))
                time.sleep(delay)
            elif isinstance(event, Draft):
                terminal.write(f"{' · '.join(event.summary)}: {_line(event, trace)}\n")
            else:
                terminal.write(spelling.decode(event.tokens) if terminal.console is not None else "")
        terminal.write("\n" if terminal.console is not None else "")


@app.command()
def html(source: Source, output: Page, verbose: o.Verbose = False) -> None:
    """Write one page that needs nothing else: steps, entropies and the order of acceptance."""
    with exit_codes(verbose), Terminal() as terminal:
        from dgemma.outputs import check_output, write_file
        from dgemma.tracepage import page

        check_output(output, source)
        write_file(output, page(_read(source, terminal)).encode("utf-8"))


@app.command()
def stats(source: Source, json: Json = False, verbose: o.Verbose = False) -> None:
    """Print in which order the canvases settled."""
    with exit_codes(verbose), Terminal() as terminal:
        from dataclasses import asdict
        from json import dumps

        from dgemma.commitorder import CommitOrder

        trace = _read(source, terminal)
        found = CommitOrder.of(trace)
        if json:
            terminal.write(dumps({"schema": 1, "complete": trace.complete, **asdict(found)}) + "\n")
            return
        lines = [f"canvases {found.canvases}, steps {found.steps}"]
        lines += [f"accepted a step {found.accepted:.2f}, settled a step {found.settled:.2f}"]
        lines += [f"revisions of accepted tokens {found.revisions}", "Kendall tau-b against left to right:"]
        shown = {size: "-" if tau is None else f"{tau:+.3f}" for size, tau in found.tau.items()}
        lines += [f"  bins of {size:>2}: {tau}" for size, tau in shown.items()]
        terminal.write("\n".join(lines) + "\n")


@dataclass(frozen=True, slots=True)
class Spelling:
    """A trace's own token texts, where a tokenizer is expected."""

    trace: Trace
    stop_ids: tuple[int, ...] = ()

    def decode(self, ids: Sequence[int], skip_special: bool = True) -> str:
        """The text of `ids`."""
        return "".join(self.trace.texts.get(int(token), "") for token in ids)


def _line(draft: Draft, trace: Trace) -> str:
    pairs = zip(draft.tokens, draft.accepted, strict=True)
    text = "".join(trace.texts.get(token, "") if accepted else "·" for token, accepted in pairs)
    return text.replace("\n", "⏎")


def _read(path: Path, terminal: Terminal) -> Trace:
    from dgemma.trace import Trace

    trace = Trace.read(path)
    if not trace.complete:
        terminal.note(f"Warning: {path} was cut{_reach(trace)}; its generation did not come to an end.", always=True)
    return trace


def _reach(trace: Trace) -> str:
    if not trace.events:
        return " before its first step"
    last = trace.events[-1]
    return f" in block {last.canvas + 1}, behind step {getattr(last, 'step', last.steps)}"

"""`dgemma bench compare`, `report` and `submit`: what is done with rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from dgemma.cli.bench import options as o
from dgemma.cli.terminal import Terminal, exit_codes
from dgemma.errors import UsageError
from dgemma.outputs import check_output

if TYPE_CHECKING:
    from dgemma.bench.row import Row


def compare(a: o.A, b: o.B, verbose: o.Verbose = False) -> None:
    """Hold B against A: ratios with a 95 % interval, and whether there is a difference at all."""
    from dgemma.bench.compare import markdown, pair

    with exit_codes(verbose), Terminal() as terminal:
        pairs = pair(_select(a), _select(b))
        terminal.write("\n".join(markdown(left, right) for left, right in pairs))


def report(files: o.Files, output: o.Report = Path("report.md"), verbose: o.Verbose = False) -> None:
    """Write a Markdown report with SVG plots."""
    from dgemma.bench.report import write
    from dgemma.bench.row import read_rows

    with exit_codes(verbose), Terminal() as terminal:
        check_output(output, *files)
        rows = [row for path in files for row in read_rows(path)]
        for path in write(rows, output):
            terminal.note(f"wrote {path}")


def submit(files: o.Files, output: o.Submission = None, verbose: o.Verbose = False) -> None:
    """Write a file of rows to share. Nothing is sent anywhere."""
    from dgemma.bench.row import read_rows
    from dgemma.bench.submit import write

    with exit_codes(verbose), Terminal() as terminal:
        path = write([row for file in files for row in read_rows(file)], output)
        terminal.note(f"Wrote {path}. Nothing was sent; read it, then share it as you like.", always=True)


def _select(text: str) -> list[Row]:
    """The rows of FILE, or those of FILE::ENGINE whose engine, backend or both are so called."""
    from dgemma.bench.row import read_rows

    name, _, engine = text.partition("::")
    rows = read_rows(Path(name))
    if not engine:
        return rows
    found = [row for row in rows if engine in (row.engine, row.backend, row.name, f"{row.engine}:{row.backend}")]
    if not found:
        known = ", ".join(sorted({row.name for row in rows}))
        raise UsageError(f"{name} has no rows of {engine!r}.", f"It has: {known}.")
    return found

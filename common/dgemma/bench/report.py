"""A report over rows: Markdown with a table across machines, ratios between engines, and plots beside it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dgemma.bench.compare import Comparison, compare, pair
from dgemma.bench.formats import label, markdown_table, number, render, setting
from dgemma.bench.row import Row
from dgemma.errors import UsageError
from dgemma.outputs import write_file

_METRICS = ("e2e tok/s", "ms/step", "CPU s/step", "quality")
_INTRODUCTION = (
    "Tokens are those a user receives, divided by the whole time from the request on (e2e) or behind the prefill "
    "(decode). A dash was not measured. `smoke` rows come from a CPU and say how engines compare there, not how fast "
    "the model is; rows with random weights carry no tokens per second, as such a model never converges."
)


def write(rows: Sequence[Row], target: Path) -> list[Path]:
    """Write `target` (Markdown) and its plots beside it; return all files."""
    from dgemma.bench.plots import plot_all

    if not rows:
        raise UsageError("There are no rows to report.")
    plots = plot_all(rows, target.parent, target.stem)
    write_file(target, text(rows, plots).encode("utf-8"))
    return [target, *(path for _, path in plots)]


def text(rows: Sequence[Row], plots: Sequence[tuple[str, Path]] = ()) -> str:
    """The report's Markdown."""
    parts = ["# Benchmark report", _INTRODUCTION, *_machines(rows)]
    parts += [f"![{title}]({path.name})" for title, path in plots]
    if ratios := _ratios(rows):
        parts += [
            "## Ratios",
            "Measured side by side, prompt by prompt; the interval is a paired bootstrap over prompts and repetitions.",
            ratios,
        ]
    return "\n\n".join(part.rstrip() for part in parts) + "\n"


def _machines(rows: Sequence[Row]) -> Iterable[str]:
    for machine in dict.fromkeys(row.machine for row in rows):
        found = [row for row in rows if row.machine == machine]
        yield f"## {machine}"
        yield _surroundings(found[0])
        for model in dict.fromkeys(_model(row) for row in found):
            yield f"### {model}"
            yield render([row for row in found if _model(row) == model], "md")


def _model(row: Row) -> str:
    weights = ", random weights" if row.weights == "random" else ""
    return f"{Path(row.model).name} ({row.weight_format or 'format unknown'}{weights})"


def _surroundings(row: Row) -> str:
    versions = row.environment.get("versions", {})
    known = ", ".join(
        f"{name} {versions[name]}" for name in ("python", "mlx", "torch", "transformers") if name in versions
    )
    load = row.environment.get("load_average") or []
    around = f"{row.environment.get('cores')} cores, load {number(float(load[0])) if load else '-'}"
    return f"{around}; {known}; commit {str(row.environment.get('commit'))[:10]}."


def _ratios(rows: Sequence[Row]) -> str:
    """Each dgemma row against every other engine's row of the same measurement."""
    lines = []
    for ours in (row for row in rows if row.engine == "dgemma"):
        for peer in (row for row in rows if row.engine != "dgemma" and row.machine == ours.machine):
            lines += _ratio_lines(ours, peer)
    heads = ("dgemma", "peer", "measurement", "metric", "dgemma/peer", "95 % interval", "verdict", "label")
    return markdown_table(heads, lines) if lines else ""


def _ratio_lines(ours: Row, peer: Row) -> list[list[str]]:
    try:
        [(peer, ours)] = pair([peer], [ours])
    except UsageError:
        return []
    if peer.model_hash != ours.model_hash:
        return []
    where = f"{ours.profile} {ours.mode} {setting(ours)}, {_model(ours)}"
    found = [each for each in compare(peer, ours) if each.metric in _METRICS]
    return [[f"{ours.engine} ({ours.backend})", peer.name, where, *_ratio(each), label(ours)] for each in found]


def _ratio(each: Comparison) -> list[str]:
    verdict = each.verdict.replace("B is", "dgemma is")
    return [each.metric, f"{each.ratio:.3f}", f"{each.low:.3f} to {each.high:.3f}", verdict]

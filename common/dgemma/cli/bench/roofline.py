"""`dgemma bench roofline`: the time below which a denoising step cannot fall."""

from __future__ import annotations

import json as jsonlib
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dgemma.cli.bench import options as o
from dgemma.cli.terminal import Terminal, exit_codes

if TYPE_CHECKING:
    from dgemma.bench.machines import Machine
    from dgemma.bench.shape import Sizes
    from dgemma.config import ModelConfig


def roofline(
    model: o.Shape = None,
    machine: o.Machine = None,
    weights: o.WeightFormat = None,
    context: o.Context = 1024,
    row: o.RowFile = None,
    json: o.Json = False,
    verbose: o.Verbose = False,
) -> None:
    """Bytes and FLOPs of one denoising step from a model's real shapes, and a machine's floor for them."""
    from dgemma.bench.roofline import floor, step
    from dgemma.bench.shape import find_format

    with exit_codes(verbose), Terminal() as terminal:
        config, sizes, stored_as = _model(model, weights)
        bits = find_format("bf16" if weights is None else weights)
        chosen, cost = _machine(machine), step(config, sizes, context)
        times = floor(cost, chosen, bits.expert_bits, bits.body_bits)
        found: dict[str, Any] = {
            "model": model or "26B-A4B release",
            "weights": stored_as,
            "context": context,
            "canvas": config.canvas_length,
            "gigabytes": {name: size / 1e9 for name, size in {**cost.weights, **cost.traffic}.items()},
            "total_gigabytes": cost.bytes / 1e9,
            "gigaflop": {name: count / 1e9 for name, count in cost.flops.items()},
            "total_gigaflop": cost.total_flops / 1e9,
            "machine": chosen.name,
            "bandwidth_gb_s": chosen.bandwidth,
            "bandwidth_share": chosen.share,
            "source": chosen.source,
            "weights_ms": times.weights_ms,
            "memory_ms": times.memory_ms,
            "compute_ms": times.compute_ms,
            "floor_ms": times.overlapped_ms,
            "serial_ms": times.serial_ms,
            "reached": _reached(row, times.overlapped_ms),
        }
        terminal.write(jsonlib.dumps(found) + "\n" if json else "\n".join(_lines(found)) + "\n")


def _model(model: str | None, weights: str | None) -> tuple[ModelConfig, Sizes, str]:
    from dgemma.bench.identity import weight_format
    from dgemma.bench.shape import find_format, in_format, release, stored
    from dgemma.checkpoint import Checkpoint
    from dgemma.config import ModelConfig
    from dgemma.hub import locate

    folder = None if model is None else locate(model).folder
    config = release() if folder is None else ModelConfig.from_folder(folder)
    if folder is None or weights is not None:
        named = find_format("bf16" if weights is None else weights)
        return config, in_format(config, named), named.name
    checkpoint = Checkpoint.open(folder)
    return config, stored(checkpoint, config), weight_format(checkpoint)


def _machine(name: str | None) -> Machine:
    """The machine of that name, or this one: by its chip's name where that is known, else by a short measurement."""
    from dgemma.bench.environment import machine
    from dgemma.bench.machines import Machine, find, recognise
    from dgemma.bench.meters import host_rates

    if name is not None:
        return find(name)
    chip = machine("gpu")
    known = recognise(chip)
    if known is not None:
        return known
    rates = host_rates()
    return Machine(chip, rates.copy_gb_s, rates.matmul_tflop_s, "measured here: numpy copy and float32 product")


def _reached(path: Path | None, floor_ms: float) -> list[dict[str, Any]]:
    """The share of the floor that each row with a step time reaches."""
    if path is None:
        return []
    from dgemma.bench.row import read_rows

    rows = [row for row in read_rows(path) if row.step_ms_p50]
    return [
        {"engine": row.name, "machine": row.machine, "step_ms": row.step_ms_p50, "share": floor_ms / row.step_ms_p50}
        for row in rows
        if row.step_ms_p50
    ]


def _lines(found: dict[str, Any]) -> Iterable[str]:
    yield f"{found['model']} as {found['weights']}, canvas {found['canvas']} behind {found['context']} tokens"
    yield f"moves    {found['total_gigabytes']:.3g} GB a step: {_parts(found['gigabytes'])}"
    yield f"computes {found['total_gigaflop'] / 1e3:.3g} TFLOP a step: {_parts(found['gigaflop'])} GFLOP"
    share = f"{found['bandwidth_share']:.0%} of {found['bandwidth_gb_s']:.4g} GB/s"
    yield f"on {found['machine']} at {share} ({found['source']})"
    yield f"weights once {found['weights_ms']:.4g} ms, all bytes {found['memory_ms']:.4g} ms"
    yield f"computation  {found['compute_ms']:.4g} ms"
    yield f"floor        {found['floor_ms']:.4g} ms a step if they overlap, {found['serial_ms']:.4g} ms if they do not"
    for each in found["reached"]:
        where = f"{each['engine']} on {each['machine']}"
        yield f"{where}: {each['step_ms']:.4g} ms a step, {each['share']:.1%} of the speed at the floor"


def _parts(sizes: dict[str, float]) -> str:
    return ", ".join(f"{name} {size:.3g}" for name, size in sizes.items() if size)

"""Time whole denoising steps: at real shapes on a GPU (a small form on a CPU), or against peers on this CPU.

`python -m benchmarks.step` prints a row a weight format with its breakdown. With `--peers` each pair runs in a process
of its own, alternating step by step, so that a busy machine slows both sides alike.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from benchmarks.engines import Engine, MlxVlm, Ours, Transformers

_PEERS = {"cuda": "transformers", "mlx": "mlx-vlm"}
_CONTEXT = 300


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line and print rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peers", action="store_true", help="compare with transformers and mlx-vlm on the CPU")
    parser.add_argument("--formats", nargs="*", default=["plain", "affine4", "affine8", "mxfp4", "nvfp4", "mxfp8"])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--kernels", default="auto", choices=["auto", "reference"])
    parser.add_argument("--backends", nargs="*", default=list(_PEERS), choices=list(_PEERS))
    parser.add_argument("--model", type=Path, help="the checkpoint to use instead of a fresh random one")
    parser.add_argument("--pair", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.pair:
        print(json.dumps(compare(options.pair, options.model, options.rounds)))
    elif options.peers:
        _peers(options)
    else:
        from benchmarks.breakdown import row

        for name in options.formats:
            print(json.dumps(row(name, options.context, options.rounds, options.kernels)), flush=True)


def compare(name: str, folder: Path, rounds: int) -> dict[str, object]:
    """One row: medians of `rounds` alternating steps of backend `name` and its peer, and their paired ratio."""
    peer: Engine = Transformers(folder, _CONTEXT) if name == "cuda" else MlxVlm(folder, _CONTEXT)
    ours = Ours(folder, name, _CONTEXT)
    for engine in (ours, peer, ours, peer):
        engine.step()
    times = [(_seconds(ours.step), _seconds(peer.step)) for _ in range(rounds)]
    return {
        "backend": name,
        "peer": _PEERS[name],
        "wall": _paired([(mine[0], theirs[0]) for mine, theirs in times]),
        "cpu": _paired([(mine[1], theirs[1]) for mine, theirs in times]),
        "ours_peak_mb": round(_peak(name, ours.step) / 1e6, 1),
        "peer_peak_mb": round(_peak(name, peer.step) / 1e6, 1),
        "mean_entropy": round(ours.step(), 3),
    }


def _seconds(call: Callable[[], object]) -> tuple[float, float]:
    """Wall seconds and CPU seconds of all threads; on a shared machine the latter are the steadier."""
    wall, cpu = time.perf_counter(), time.process_time()
    call()
    return time.perf_counter() - wall, time.process_time() - cpu


def _paired(times: Sequence[tuple[float, float]]) -> dict[str, object]:
    ratios = sorted(mine / theirs for mine, theirs in times)
    quarter = len(ratios) // 4
    return {
        "ours_ms": round(1e3 * statistics.median(mine for mine, _ in times), 1),
        "peer_ms": round(1e3 * statistics.median(theirs for _, theirs in times), 1),
        "ratio": round(statistics.median(ratios), 3),
        "quartiles": [round(ratios[quarter], 3), round(ratios[-1 - quarter], 3)],
    }


def _peak(name: str, call: Callable[[], object]) -> int:
    """Bytes that `call` needs at once beyond what is held before it."""
    if name == "mlx":
        import mlx.core as mx

        mx.clear_cache()
        mx.reset_peak_memory()
        before = mx.get_active_memory()
        call()
        return int(mx.get_peak_memory() - before)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = _resident("VmRSS")
    call()
    return _resident("VmHWM") - before


def _resident(field: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith(field))


def _peers(options: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.model or _random(Path(scratch) / "model")
        for name in options.backends:
            command = [sys.executable, "-m", "benchmarks.step", "--pair", name, "--rounds", str(options.rounds)]
            finished = subprocess.run(
                [*command, "--model", str(folder)], capture_output=True, text=True, env=os.environ, check=False
            )
            print(finished.stdout.strip().splitlines()[-1] if finished.returncode == 0 else finished.stderr)


def _random(folder: Path) -> Path:
    from benchmarks.random_model import Shape, write

    return write(folder, Shape())


if __name__ == "__main__":
    main()

"""The comparison on this machine's processor in one command: `python -m benchmarks.cpu`.

dgemma on both backends, transformers and mlx-vlm take turns on the demo model (adaptive, with quality) and on a random
model with a large vocabulary (fixed steps). Rows go into benchmarks/results/cpu.jsonl, the report beside it. All of it
is a smoke figure: it says how the engines compare on a processor, not how fast the real model is anywhere.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.random_model import PRESETS, write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ENGINES = ("dgemma:mlx", "dgemma:cuda", "transformers", "mlx-vlm")


def main() -> None:
    """Measure, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-m", "--model", default="demo", help="the trained model")
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--prompts", type=int, help="only the first prompts of the demo profile")
    parser.add_argument("--steps", type=int, default=8, help="steps a canvas on the random model")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "cpu.jsonl")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.unlink(missing_ok=True)
    shared = ["--device", "cpu", "-r", str(options.repetitions), "-o", str(options.output)]
    few = [] if options.prompts is None else ["--prompts", str(options.prompts)]
    _bench("run", "-m", options.model, "--profile", "demo", *few, *shared, *_engines())
    with tempfile.TemporaryDirectory() as scratch:
        folder = write(Path(scratch) / "random-vocab", PRESETS["vocab"])
        limits = ["--prompt-tokens", "300", "--steps", str(options.steps), "-n", "256", "--prompts", "1"]
        _bench("run", "-m", str(folder), "--profile", "fixed", *limits, *shared, *_engines())
    _bench("report", str(options.output), "-o", str(options.output.with_suffix(".md")))


def _engines() -> Sequence[str]:
    return [part for engine in ENGINES for part in ("--engine", engine)]


def _bench(*arguments: str) -> None:
    """Run `dgemma bench` with a fast BLAS under MLX, whose Linux wheel brings a slow one."""
    paths = os.pathsep.join([str(ROOT), str(ROOT / "common"), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": paths, "OMP_WAIT_POLICY": "PASSIVE"}
    if library := _openblas():
        environment.setdefault("LD_PRELOAD", library)
    subprocess.run([sys.executable, "-m", "dgemma", "bench", *arguments], env=environment, check=True)


def _openblas() -> str | None:
    if shutil.which("ldconfig") is None:
        return None
    listed = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=False).stdout
    return next((line.split()[-1] for line in listed.splitlines() if "libopenblas.so.0" in line), None)


if __name__ == "__main__":
    main()

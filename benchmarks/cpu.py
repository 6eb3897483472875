"""The comparison on this machine's processor in one command: `python -m benchmarks.cpu`.

dgemma on both backends, transformers and mlx-vlm take turns on the demo model (adaptive, with quality) and on a random
model with a large vocabulary (fixed steps). Rows go into benchmarks/results/cpu.jsonl, the report beside it. All of it
is a smoke figure: it says how the engines compare on a processor, not how fast the real model is anywhere.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.random_model import PRESETS, write

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
ENGINES = ("dgemma:mlx", "dgemma:cuda", "transformers", "mlx-vlm")


def main() -> None:
    """Measure, then write the report."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", choices=["demo", "vocab", []], help="what to measure again; both if none")
    parser.add_argument("-m", "--model", default="demo", help="the trained model")
    parser.add_argument("-r", "--repetitions", type=int, default=5)
    parser.add_argument("--steps", type=int, default=8, help="steps a canvas on the random model")
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "cpu.jsonl")
    options = parser.parse_args()
    options.output.parent.mkdir(parents=True, exist_ok=True)
    for part in options.parts or ("demo", "vocab"):
        {"demo": _demo, "vocab": _vocab}[part](options)
    _bench("report", str(options.output), "-o", str(options.output.with_suffix(".md")))


def _demo(options: argparse.Namespace) -> None:
    _forget(options.output, "demo")
    _run(options, "-m", options.model, "--profile", "demo")


def _vocab(options: argparse.Namespace) -> None:
    _forget(options.output, "fixed")
    with tempfile.TemporaryDirectory() as scratch:
        folder = write(Path(scratch) / "random-vocab", PRESETS["vocab"])
        limits = ["--prompt-tokens", "300", "--steps", str(options.steps), "-n", "256", "--prompts", "1"]
        _run(options, "-m", str(folder), "--profile", "fixed", *limits)


def _run(options: argparse.Namespace, *arguments: str) -> None:
    engines = [part for engine in ENGINES for part in ("--engine", engine)]
    shared = ["--device", "cpu", "-r", str(options.repetitions), "-o", str(options.output)]
    _bench("run", *arguments, *shared, *engines)


def _forget(path: Path, profile: str) -> None:
    """Drop the rows that are about to be measured again."""
    lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
    path.write_text("".join(line for line in lines if json.loads(line)["profile"] != profile), encoding="utf-8")


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

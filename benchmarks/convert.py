"""Memory and throughput of `dgemma convert` on a synthetic checkpoint with the real model's layer shapes.

    python benchmarks/convert.py --folder /some/disk [--layers 2] [--ways copy 4bit back nvfp4]

Every conversion runs in a process of its own, whose peak resident memory is taken; where nothing is requantized, `cp`
of the source to the same disk runs before and after it. Prints one JSON row a conversion; deletes what it wrote.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from dgemma.config import ModelConfig
from dgemma.names import expected_tensors
from dgemma_convert.floats import itemsize

GENERATION = {"max_denoising_steps": 48, "t_min": 0.4, "t_max": 0.8, "sampler_config": {"entropy_bound": 0.1}}
WAYS: dict[str, tuple[str, list[str]]] = {
    "copy": ("bf16", []),
    "4bit": ("bf16", ["--bits", "4"]),
    "nvfp4": ("bf16", ["--recipe", "uniform", "--mode", "nvfp4"]),
    "back": ("4bit.out", ["--to", "hub"]),
    "modelopt": ("modelopt", []),
}
DECLARED = {"modelopt": {"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}}
EXACT = ("copy", "modelopt")
_BLOCK = 1 << 24
Tensor = tuple[str, str, tuple[int, ...]]


def config(layers: int) -> dict[str, Any]:
    """The release's shapes with fewer layers; the last one is full."""
    kinds = ["sliding_attention"] * (layers - 1) + ["full_attention"]
    rope = {"rope_type": "proportional", "rope_theta": 1e6, "partial_rotary_factor": 0.25}
    text = {
        "vocab_size": 262144,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "moe_intermediate_size": 704,
        "num_experts": 128,
        "top_k_experts": 8,
        "num_hidden_layers": layers,
        "layer_types": kinds,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}, "full_attention": rope},
    }
    return {"model_type": "diffusion_gemma", "canvas_length": 256, "dtype": "bfloat16", "text_config": text}


def plain(raw: dict[str, Any]) -> Iterator[Tensor]:
    """The hub layout, and a vision tower's worth of bytes."""
    for name, shape in expected_tensors(ModelConfig.from_dict(raw)).items():
        yield name, "BF16", shape
    for layer in range(27):
        yield f"model.encoder.vision_tower.encoder.layers.{layer}.x.weight", "BF16", (18344, 1152)


def unfused(raw: dict[str, Any]) -> Iterator[Tensor]:
    """modelopt's layout: experts one by one in NVFP4."""
    for name, dtype, shape in plain(raw):
        base, _, kind = name.rpartition(".experts.")
        if not base:
            yield name, dtype, shape
            continue
        experts, rows, columns = shape
        halves = ("gate_proj", "up_proj") if kind == "gate_up_proj" else ("down_proj",)
        for expert in range(experts):
            for half in halves:
                path, height = f"{base}.experts.{expert}.{half}", rows // len(halves)
                yield f"{path}.weight", "U8", (height, columns // 2)
                yield f"{path}.weight_scale", "F8_E4M3", (height, columns // 16)
                yield f"{path}.weight_scale_2", "F32", ()
                yield f"{path}.input_scale", "F32", ()


def write(folder: Path, raw: dict[str, Any], tensors: list[Tensor]) -> int:
    """A checkpoint of random numbers, none of which is infinite in any format; its size."""
    folder.mkdir(parents=True)
    entries, position = {}, 0
    for name, dtype, shape in tensors:
        size = math.prod(shape) * itemsize(dtype)
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [position, position + size]}
        position += size
    header = json.dumps(entries).encode()
    block = np.random.default_rng(0).normal(size=_BLOCK).astype(np.float32).view(np.uint16)[1::2].tobytes()
    octets = np.random.default_rng(0).integers(0, 120, _BLOCK, dtype=np.uint8).tobytes()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for _, dtype, shape in tensors:
            rest = math.prod(shape) * itemsize(dtype)
            source = block if dtype == "BF16" else octets
            while rest:
                rest -= file.write(source[: min(rest, len(source))])
    (folder / "config.json").write_text(json.dumps(raw))
    (folder / "generation_config.json").write_text(json.dumps(GENERATION))
    return position


def copied(source: Path, target: Path) -> float:
    """Seconds that `cp -r` and flushing take."""
    start = time.perf_counter()
    subprocess.run(["cp", "-r", source, target], check=True)
    subprocess.run(["sync", "-f", target], check=True)
    seconds = time.perf_counter() - start
    shutil.rmtree(target)
    return seconds


def converted(source: Path, target: Path, flags: list[str]) -> tuple[float, int]:
    """Seconds and peak resident bytes of a conversion in a process of its own."""
    start = time.perf_counter()
    command = [sys.executable, "-m", "dgemma", "convert", str(source), str(target), "--quiet", *flags]
    child = os.posix_spawn(sys.executable, command, dict(os.environ))
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit(f"{' '.join(command)} failed")
    return time.perf_counter() - start, usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def measure(folder: Path, way: str) -> dict[str, Any]:
    """One conversion between two copies of its source."""
    name, flags = WAYS[way]
    source, target = folder / name, folder / f"{way}.out"
    before = copied(source, folder / "copy") if way in EXACT else None
    seconds, peak = converted(source, target, flags)
    after = copied(source, folder / "copy") if way in EXACT else None
    size = sum(file.stat().st_size for file in source.iterdir())
    written = sum(file.stat().st_size for file in target.iterdir())
    row = {"way": way, "flags": flags, "read_bytes": size, "written_bytes": written, "peak_resident_bytes": peak}
    row["seconds"] = seconds
    if before is not None and after is not None:
        row |= {"cp_seconds": [before, after], "share_of_cp": (before + after) / 2 / seconds}
    return row | {"machine": platform.machine(), "cpus": os.cpu_count(), "load": os.getloadavg()[0]}


def main() -> None:
    """Write the checkpoints, convert them, print the rows, delete everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="an empty place on the disk to be measured")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=["copy", "4bit", "back", "modelopt"])
    options = parser.parse_args()
    raw = config(options.layers)
    work = options.folder / "benchmark-convert"
    work.mkdir(parents=True)
    makers = {"bf16": plain, "modelopt": unfused}
    try:
        for name in makers.keys() & {WAYS[way][0] for way in options.ways}:
            write(work / name, raw | DECLARED.get(name, {}), list(makers[name](raw)))
        for way in options.ways:
            print(json.dumps(measure(work, way)), flush=True)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()

"""The roofline against figures derived by hand: bytes and FLOPs within 1 %, named machines by their own convention."""

from pathlib import Path

import pytest

from dgemma.bench.machines import find, recognise
from dgemma.bench.roofline import Floor, Step, floor, step
from dgemma.bench.shape import FORMATS, in_format, parameters, release, stored
from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import UsageError

CONTEXT = 1024


def found(name: str) -> Step:
    config = release()
    return step(config, in_format(config, FORMATS[name]), CONTEXT)


def times(machine: str, name: str) -> Floor:
    return floor(found(name), find(machine), FORMATS[name].expert_bits, FORMATS[name].body_bits)


def close(value: float) -> object:
    return pytest.approx(value, rel=0.01)


def test_parameters_of_the_release() -> None:
    counts = parameters(release())
    assert sum(counts.values()) == 25_250_986_812
    billions = {"experts": 22.84, "attention": 1.110, "dense": 0.535, "embedding": 0.738, "self_conditioning": 0.018}
    assert {name: counts[name] / 1e9 for name in billions} == {name: close(value) for name, value in billions.items()}


def test_flops_of_a_step() -> None:
    flops = {name: value / 1e9 for name, value in found("bf16").flops.items()}
    assert sum(flops.values()) == close(2530)
    assert flops["head"] == flops["soft_embedding"] == close(378) and flops["scores"] == close(188)
    assert flops["experts"] == close(731)
    body = sum(flops[name] for name in ("experts", "attention", "dense", "self_conditioning", "router"))
    assert body == close(1588)


@pytest.mark.parametrize(("name", "moved"), [("bf16", 53.5), ("fp8", 29.1), ("nvfp4", 20.7), ("int4-g32", 18.4)])
def test_bytes_of_a_step(name: str, moved: float) -> None:
    assert found(name).bytes / 1e9 == close(moved)


@pytest.mark.parametrize(("name", "weights"), [("bf16", 50.5), ("mlx-8bit", 26.8), ("mlx-4bit", 15.4)])
def test_bytes_of_the_weights(name: str, weights: float) -> None:
    assert found(name).weight_bytes / 1e9 == close(weights)


@pytest.mark.parametrize(("name", "twice"), [("mlx-8bit", 27.6), ("mlx-4bit", 16.2)])
def test_embedding_read_twice(name: str, twice: float) -> None:
    both = found(name).weight_bytes + found(name).traffic["embedding_again"]
    assert both / 1e9 == close(twice)


@pytest.mark.parametrize(
    ("machine", "name", "memory", "compute"),
    [
        ("H100", "bf16", 15.98, 2.55),
        ("H100", "fp8", 8.68, 1.75),
        ("H100", "nvfp4", 6.18, 2.55),
        ("H100", "int4-g32", 5.50, 2.55),
        ("H200", "bf16", 11.15, 2.55),
        ("H200", "fp8", 6.06, 1.75),
        ("H200", "nvfp4", 4.31, 2.55),
        ("H200", "int4-g32", 3.84, 2.55),
        ("RTX 5090", "bf16", 29.87, 12.06),
        ("RTX 5090", "fp8", 16.22, 8.28),
        ("RTX 5090", "nvfp4", 11.55, 9.01),
        ("RTX 5090", "int4-g32", 10.29, 12.06),
        ("RTX 4090", "fp8", 28.84, 10.52),
        ("RTX 4090", "nvfp4", 20.54, 15.31),
        ("RTX 4090", "int4-g32", 18.29, 15.31),
    ],
)
def test_nvidia_rows_at_nominal_bandwidth(machine: str, name: str, memory: float, compute: float) -> None:
    ours = times(machine, name)
    assert ours.memory_ms == close(memory)
    assert ours.compute_ms == close(compute)


@pytest.mark.parametrize(
    ("machine", "name", "weights"),
    [
        ("M4 Max", "bf16", 50.5 / 0.4641),
        ("M4 Max", "mlx-8bit", 26.8 / 0.4641),
        ("M4 Max", "mlx-4bit", 15.4 / 0.4641),
        ("M5 Max", "bf16", 50.5 / 0.5219),
        ("M5 Max", "mlx-8bit", 26.8 / 0.5219),
        ("M5 Max", "mlx-4bit", 15.4 / 0.5219),
    ],
)
def test_apple_rows_weights_at_85_percent(machine: str, name: str, weights: float) -> None:
    assert times(machine, name).weights_ms == close(weights)


@pytest.mark.parametrize(
    ("machine", "name", "rounded"),
    [("M4 Max", "mlx-4bit", 33), ("M4 Max", "mlx-8bit", 58), ("M5 Max", "mlx-4bit", 30), ("M5 Max", "mlx-8bit", 51)],
)
def test_apple_rows_to_the_millisecond(machine: str, name: str, rounded: int) -> None:
    assert abs(times(machine, name).weights_ms - rounded) <= 0.6


@pytest.mark.parametrize(
    ("machine", "compute"),
    [
        ("M1 Max", 779),
        ("M1 Max fp16", 439),
        ("M2 Ultra", 173),
        ("M3 Ultra", 172),
        ("M3 Pro", 916),
        ("M4 Max", 263),
        ("M5 Pro", 138),
        ("M5 Max", 69),
    ],
)
def test_apple_rows_compute_at_measured_rates(machine: str, compute: float) -> None:
    assert times(machine, "mlx-4bit").compute_ms == close(compute)


def test_a_checkpoint_is_counted_as_stored(folder: Path) -> None:
    config = ModelConfig.from_folder(folder)
    sizes = stored(Checkpoint.open(folder), config)
    assert sizes == {name: 4 * count for name, count in parameters(config).items()}


def test_names() -> None:
    assert find("h100").name == "H100" and find("5090").name == "RTX 5090"
    assert recognise("Apple M4 Max") == find("M4 Max") and recognise("NVIDIA H200") == find("H200")
    assert recognise("AMD EPYC") is None
    with pytest.raises(UsageError, match="No machine"):
        find("abacus")

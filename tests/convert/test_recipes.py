"""Recipes and plans: what is stored how, sizes of the real model, groups that do not divide."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dgemma.cli import app
from dgemma.config import ModelConfig
from dgemma.errors import UsageError
from dgemma.names import expected_tensors
from dgemma.quantization import QuantSpec
from dgemma_convert import recipes
from dgemma_convert.card import card
from dgemma_convert.memory import needs
from dgemma_convert.pieces import Plain
from dgemma_convert.plan import Options, Plan, make_plan
from dgemma_convert.report import as_dict, table, totals
from dgemma_convert.source import Source, Weight
from dgemma_convert.stretch import Stretch
from tests.convert import models
from tests.convert.support import close, converted, logits

REAL = {
    "vocab_size": 262144,
    "hidden_size": 2816,
    "intermediate_size": 2112,
    "moe_intermediate_size": 704,
    "num_experts": 128,
    "top_k_experts": 8,
    "num_hidden_layers": 30,
    "layer_types": ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(30)],
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "num_global_key_value_heads": 2,
    "head_dim": 256,
    "global_head_dim": 512,
    "sliding_window": 1024,
    "max_position_embeddings": 262144,
}
VISION = {"model.encoder.vision_tower.encoder.layers.0.mlp.down_proj.linear.weight": (1152, 494387)}


def planned(**options: Any) -> Plan:
    """A plan for the real model's shapes; no file is touched."""
    raw = models.config(**REAL) | {"canvas_length": 256, "dtype": "bfloat16"}
    return make_plan(planned_source(raw, expected_tensors(ModelConfig.from_dict(raw)) | VISION), Options(**options))


def planned_source(raw: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> Source:
    weights = {}
    for name, shape in shapes.items():
        rows = math.prod(shape[:-1])
        weights[name] = Weight(name, shape, (Plain(Stretch(Path("x"), 0, rows, 2 * shape[-1]), "BF16"),))
    return Source(Path("real"), "safetensors", raw, weights, {}, {})


def formats(plan: Plan) -> dict[str, str]:
    return {item.weight.name.removeprefix("model.decoder."): item.target for item in plan.items}


def test_the_default_recipe_fits_in_18_gb() -> None:
    plan = planned(bits=4)
    found = formats(plan)
    assert found["layers.3.experts.gate_up_proj"] == "affine 4-bit g64"
    for name in ("embed_tokens.weight", "layers.0.self_attn.q_proj.weight", "layers.0.router.proj.weight"):
        assert found[name] == "affine 8-bit g64"
    assert found["layers.0.mlp.down_proj.weight"] == "affine 8-bit g64"
    assert found["layers.0.router.scale"] == "BF16"
    assert found["model.encoder.vision_tower.encoder.layers.0.mlp.down_proj.linear.weight"] == "BF16"
    assert 16.0e9 < needs(plan)["mlx"] < 16.2e9
    assert 16.3e9 < needs(plan)["cuda"] < 16.5e9
    assert 15e9 < plan.nbytes < 18e9
    assert 4.5 < totals(plan)["bits_per_weight"] < 5


@pytest.mark.parametrize(
    ("name", "low", "high"), [("all-8bit", 8.4, 8.6), ("experts-only", 5, 6.1), ("mixed-4-6", 4.6, 5.4)]
)
def test_bits_of_other_recipes(name: str, low: float, high: float) -> None:
    assert low < totals(planned(recipe=name))["bits_per_weight"] < high


def test_the_card_names_the_release() -> None:
    plan = planned(bits=4)
    assert "base_model: google/diffusiongemma-26B-A4B-it" in card(plan, as_dict(plan))


@pytest.mark.parametrize(
    ("path", "title"),
    [("demo-v1.5", "demo-v1.5"), ("a.b/c.safetensors", "c.safetensors"), ("m-1.5.gguf", "m-1.5"), ("M.GGUF", "M")],
)
def test_the_card_s_title(path: str, title: str) -> None:
    plan = planned(bits=4)
    plan = replace(plan, source=replace(plan.source, path=Path(path)))
    assert f"# {title} in the mlx layout" in card(plan, as_dict(plan)).splitlines()


def test_experts_only_touches_nothing_else() -> None:
    found = formats(planned(recipe="experts-only"))
    assert {kind for name, kind in found.items() if ".experts." in name} == {"nvfp4"}
    assert {kind for name, kind in found.items() if ".experts." not in name} == {"BF16"}


def test_the_mixed_recipe_widens_heavy_layers() -> None:
    found = formats(planned(recipe="mixed-4-6"))
    wide = [layer for layer in range(30) if found[f"layers.{layer}.experts.down_proj"] == "affine 6-bit g64"]
    assert wide[:3] == [0, 1, 2]
    assert wide[-3:] == [27, 28, 29]
    assert 12 <= len(wide) <= 16


def test_a_group_that_does_not_divide_shrinks() -> None:
    plan = planned(bits=4, group_size=128)
    items = {item.weight.name: item for item in plan.items}
    down = items["model.decoder.layers.0.experts.down_proj"]
    assert down.target == "affine 4-bit g64"
    assert down.note == "groups of 64: 128 does not divide 704"
    assert items["model.decoder.layers.0.experts.gate_up_proj"].target == "affine 4-bit g128"
    assert "128 does not divide 704" in table(plan)
    assert any(tensor.get("note") == down.note for tensor in as_dict(plan)["tensors"])


def test_a_row_that_no_group_divides_stays_plain(tmp_path: Path) -> None:
    raw = models.config(moe_intermediate_size=24)
    source = models.hub(tmp_path / "source", raw=raw)
    report = converted(source, tmp_path / "out", mode="mxfp4", recipe="uniform")
    assert report["model.decoder.layers.0.experts.down_proj"]["to"] == "F32"
    assert "no group of mxfp4 divides 24" in report["model.decoder.layers.0.experts.down_proj"]["note"]
    assert close(logits(tmp_path / "out", "mlx"), logits(tmp_path / "out", "cuda"), 1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {"to": "hub", "bits": 4},
        {"bits": 7},
        {"mode": "mxfp4", "bits": 8},
        {"mode": "nvfp4", "group_size": 32},
        {"recipe": "best"},
        {"group_size": 64},
        {"bits": 4, "group_size": 48},
        {"dtype": "fp8"},
    ],
    ids=str,
)
def test_contradictions(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        planned(**options)


RECIPES = [None, *recipes.RECIPES]
WIDTHS = {"affine": (2, 3, 4, 5, 6, 8), "mxfp4": (4,), "mxfp8": (8,), "nvfp4": (4,)}
GROUPS = {"affine": (32, 64, 128), "mxfp4": (32,), "mxfp8": (32,), "nvfp4": (16,)}
MATRIX = [
    {key: value for key, value in zip(("recipe", "bits", "mode", "group_size"), each, strict=True) if value is not None}
    for each in itertools.product(RECIPES, (None, *range(2, 9)), (None, *WIDTHS), (None, 16, 32, 64, 128, 48))
]


def in_force(plan: Plan, flags: dict[str, Any]) -> bool:
    """Whether every flag shows in what becomes of the experts' wide rows."""
    name = "model.decoder.layers.3.experts.gate_up_proj"
    form = next(item.form for item in plan.items if item.weight.name == name)
    assert form is not None
    shown = {"bits": form.spec.bits, "mode": form.spec.mode, "group_size": form.spec.group_size}
    return all(shown[key] == value for key, value in flags.items() if key != "recipe")


def is_possible(flags: dict[str, Any]) -> bool:
    """The rules of the flags, said once more."""
    recipe, bits, mode, group_size = (flags.get(key) for key in ("recipe", "bits", "mode", "group_size"))
    if recipe in ("all-8bit", "mixed-4-6") and (bits or mode):
        return False
    of_nvidia = recipe == "experts-only" and not bits and not mode
    used = mode or ("nvfp4" if of_nvidia else "affine")
    return (recipe or bits or mode or not group_size) and (
        (not bits or bits in WIDTHS[used]) and (not group_size or group_size in GROUPS[used])
    )


def test_no_flag_is_ignored() -> None:
    """The whole matrix: each combination shows in the plan or is refused, in one line that names a flag or a format."""
    taken = 0
    small = small_source()
    for flags in MATRIX:
        if is_possible(flags):
            plan = make_plan(small, Options(**flags))
            assert not flags or set(flags) == {"recipe"} or in_force(plan, flags), flags
            taken += 1
        else:
            with pytest.raises(UsageError) as error:
                make_plan(small, Options(**flags))
            assert "\n" not in error.value.line(), flags
    assert 60 < taken < len(MATRIX)


@pytest.mark.parametrize("recipe", recipes.RECIPES)
def test_recipes_differ(recipe: str) -> None:
    """By themselves, and from no recipe at all."""
    small = small_source()
    plans = {name: [item.target for item in make_plan(small, Options(recipe=name)).items] for name in recipes.RECIPES}
    plans["none"] = [item.target for item in make_plan(small, Options()).items]
    assert sum(each == plans[recipe] for each in plans.values()) == 1


@pytest.mark.parametrize("flag", [["--bits", "4"], ["--mode", "nvfp4"], ["--group-size", "16"]], ids=" ".join)
@pytest.mark.parametrize("recipe", ["all-8bit", "mixed-4-6"])
def test_the_command_refuses_them(tmp_path: Path, recipe: str, flag: list[str]) -> None:
    source = models.hub(tmp_path / "source")
    words = ["convert", str(source), str(tmp_path / "out"), "--recipe", recipe, *flag]
    done = CliRunner().invoke(app, words)
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert flag[0] in done.stderr and not (tmp_path / "out").exists()


def small_source() -> Source:
    """Four layers of rows that every group divides."""
    raw = models.config(**REAL | {"num_hidden_layers": 4, "layer_types": REAL["layer_types"][2:6]})
    return planned_source(raw, expected_tensors(ModelConfig.from_dict(raw)))


def test_heavy_layers() -> None:
    assert [layer for layer in range(16) if recipes.is_heavy(f"m.layers.{layer}.x", 16)] == [0, 1, 4, 7, 10, 13, 14, 15]
    assert not recipes.is_heavy("m.embed_tokens", 16)
    assert recipes.legal(QuantSpec(4, 128), 96) == QuantSpec(4, 32)

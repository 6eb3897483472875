"""Tensor names: the hub set, the MLX spellings, and the report on what does not fit."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from dgemma.checkpoint import Checkpoint
from dgemma.config import ModelConfig
from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.names import EMBEDDING, Source, canonical, check_strict, expected_tensors, plan
from dgemma.quantization import Quantization, QuantSpec
from tiny_folder import config_dict

CONFIG = ModelConfig.from_dict(config_dict())
LAYER = "model.decoder.layers.0."


def release() -> ModelConfig:
    raw = config_dict()
    raw["canvas_length"] = 256
    raw["text_config"] |= {
        "vocab_size": 262144,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "moe_intermediate_size": 704,
        "num_experts": 128,
        "top_k_experts": 8,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_hidden_layers": 30,
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 5,
    }
    return ModelConfig.from_dict(raw)


def test_release_census() -> None:
    shapes = expected_tensors(release())
    assert len(shapes) == 657 + 4 + 30
    assert shapes["model.decoder.layers.5.self_attn.k_proj.weight"] == (1024, 2816)
    assert shapes[LAYER + "experts.gate_up_proj"] == (128, 1408, 2816)
    assert "model.decoder.layers.5.self_attn.v_proj.weight" not in shapes
    parameters = sum(int(np.prod(shape)) for shape in shapes.values())
    assert parameters == 25_250_986_812


def test_canonical_is_idempotent() -> None:
    name = LAYER + "experts.gate_up_proj.weight"
    assert canonical(name) == canonical(canonical(name)) == LAYER + "experts.gate_up_proj"
    assert all(canonical(name) == name for name in expected_tensors(CONFIG))


def test_hub_folder_plans_itself(folder: Path) -> None:
    found = Checkpoint.open(folder).plan(CONFIG)
    assert found.sources.keys() == expected_tensors(CONFIG).keys()
    assert all(source == Source((name,)) for name, source in found.sources.items())


def test_duplicates_and_vision() -> None:
    found = plan(
        [
            "lm_head.weight",
            "model.encoder.language_model.layers.0.mlp.up_proj.weight",
            "model.encoder.language_model.layers.0.layer_scalar",
            "model.encoder.vision_tower.std_bias",
        ]
    )
    assert found.duplicates == {
        "lm_head.weight": EMBEDDING,
        "model.encoder.language_model.layers.0.mlp.up_proj.weight": LAYER + "mlp.up_proj.weight",
    }
    assert list(found.sources) == ["model.encoder.language_model.layers.0.layer_scalar"]
    assert found.skipped == ("model.encoder.vision_tower.std_bias",)


def test_split_expert_spellings() -> None:
    names = [f"{LAYER}experts.switch_glu.{kind}_proj.scales" for kind in ("gate", "up", "down")]
    sources = plan(names).sources
    assert sources[LAYER + "experts.gate_up_proj.scales"] == Source(tuple(names[:2]))
    assert sources[LAYER + "experts.down_proj.scales"] == Source((names[2],))
    each = [f"{LAYER}experts.{e}.{kind}_proj.weight" for e in range(12) for kind in ("gate", "up", "down")]
    source = plan(each).sources[LAYER + "experts.gate_up_proj"]
    assert source.experts == 12 and source.parts[2:4] == (each[3], each[4]) and len(source.parts) == 24


def test_assembly_on_arrays() -> None:
    stored = {f"{kind}{e}": np.full((2, 3), 10 * e + k) for e in range(3) for k, kind in enumerate(("gate", "up"))}
    source = Source(tuple(f"{kind}{e}" for e in range(3) for kind in ("gate", "up")), experts=3)
    built = source.assemble(stored.__getitem__, lambda parts, axis: np.concatenate(parts, axis), np.stack)
    assert built.shape == (3, 4, 3) and built[2, :, 0].tolist() == [20, 20, 21, 21]


def test_incomplete_experts() -> None:
    with pytest.raises(CheckpointError, match="incomplete"):
        plan([f"{LAYER}experts.0.gate_proj.weight", f"{LAYER}experts.1.up_proj.weight"])
    with pytest.raises(CheckpointError, match="two spellings"):
        plan([LAYER + "experts.down_proj", LAYER + "experts.down_proj.weight"])


def test_report_lists_five_of_each_kind() -> None:
    shapes = expected_tensors(CONFIG)
    short = {name: shape for name, shape in shapes.items() if "layers.0" not in name}
    short |= {"extra": (1,), EMBEDDING: (3, 3)}
    with pytest.raises(CheckpointError) as caught:
        check_strict(short, CONFIG)
    message = str(caught.value)
    assert "23 missing" in message and "1 unexpected: extra [1]" in message
    assert f"1 mis-shaped: {EMBEDDING} [3, 3] instead of [256, 64]" in message
    assert message.count("model.decoder.layers.0.") == 5 and "\n" not in message


def quantized(spec: QuantSpec) -> dict[str, tuple[int, ...]]:
    shapes = {}
    for name, shape in expected_tensors(CONFIG).items():
        path = name.removesuffix(".weight")
        if path.endswith(("_proj", "embed_tokens")) and shape[-1] % spec.group_size == 0:
            groups = (*shape[:-1], shape[-1] // spec.group_size)
            shapes |= {name: (*shape[:-1], shape[-1] * spec.bits // 32), path + ".scales": groups}
            shapes |= {path + ".biases": groups} if spec.has_biases else {}
        else:
            shapes[name] = shape
    return shapes


@pytest.mark.parametrize(
    "spec", [QuantSpec(4, 32), QuantSpec(6, 64), QuantSpec(4, 16, "nvfp4"), QuantSpec(8, 32, "mxfp8")]
)
def test_quantized_shapes(spec: QuantSpec) -> None:
    quantization = Quantization(spec, {})
    shapes = quantized(spec)
    check_strict(shapes, CONFIG, quantization)
    with pytest.raises(CheckpointError, match="unexpected"):
        check_strict(shapes, CONFIG, None)
    shapes[EMBEDDING] = (256, 3)
    with pytest.raises(CheckpointError, match="1 mis-shaped"):
        check_strict(shapes, CONFIG, quantization)


def test_quantization_from_config() -> None:
    raw = {
        "group_size": 32,
        "bits": 4,
        "mode": "mxfp4",
        "a.b": {"group_size": 64, "bits": 8},
        "a.c": False,
        "a.d": True,
    }
    found = Quantization.from_config({"quantization": raw, "quantization_config": raw})
    assert found is not None
    assert found.spec("anything") == QuantSpec(4, 32, "mxfp4") == found.spec("a.d")
    assert found.spec("a.b") == QuantSpec(8, 64, "affine") and found.spec("a.c") is None
    assert Quantization.from_config({}) is None


@pytest.mark.parametrize("method", ["modelopt", "compressed-tensors", "awq", "gptq", "bitsandbytes"])
def test_foreign_quantization_is_named(method: str) -> None:
    with pytest.raises(UnsupportedError, match=method) as caught:
        Quantization.from_config({"quantization_config": {"quant_method": method, "bits": 4}})
    assert "dgemma convert" in caught.value.remedy


@pytest.mark.parametrize(
    "raw", [{"mode": "q4_k"}, {"bits": 7}, {"group_size": 31}, {"mode": "nvfp4", "group_size": 32}]
)
def test_unknown_formats(raw: dict) -> None:
    with pytest.raises(UnsupportedError):
        Quantization.from_config({"quantization": raw})


def test_switch_glu_folder(folder: Path) -> None:
    tensors = {name: np.zeros(shape, np.float32) for name, shape in expected_tensors(CONFIG).items()}
    for index in range(2):
        base = f"model.decoder.layers.{index}.experts."
        gate, up = np.split(tensors.pop(base + "gate_up_proj"), 2, axis=1)
        named = {"gate": gate, "up": up, "down": tensors.pop(base + "down_proj")}
        tensors |= {f"{base}switch_glu.{kind}_proj.weight": array.copy() for kind, array in named.items()}
    save_file(tensors, folder / "model.safetensors")
    assert Checkpoint.open(folder).plan(CONFIG).sources.keys() == expected_tensors(CONFIG).keys()

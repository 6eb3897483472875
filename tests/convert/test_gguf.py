"""GGUF: every block type against the gguf package's own dequantizer; metadata, tokenizer, split experts."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from tokenizers import Tokenizer

from dgemma.errors import UnsupportedError
from dgemma_convert import Options, preview
from dgemma_convert.readers import open_source
from tests.convert import ggufs, models
from tests.convert.support import close, converted, logits

Kind = gguf.GGMLQuantizationType
WIDE = models.config(
    hidden_size=256, intermediate_size=256, moe_intermediate_size=256, num_experts=2, head_dim=128, global_head_dim=128
)
LEGACY = ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "MXFP4")
EXPERT = "model.decoder.layers.1.experts.down_proj"


@pytest.mark.parametrize("kind", [*LEGACY, "Q4_K", "Q5_K"])
def test_repacking_equals_the_library(tmp_path: Path, kind: str) -> None:
    wide = kind.endswith("K")
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind[kind], WIDE if wide else None)
    report = converted(path, tmp_path / "out")
    expected = library(path)
    written = open_source(tmp_path / "out").weights
    for name in (EXPERT, "model.decoder.embed_tokens.weight", "model.decoder.layers.0.self_attn.q_proj.weight"):
        (piece,) = written[name].pieces
        assert np.array_equal(piece.values(0, piece.rows), expected[ggufs.spelled(name)]), name
        assert report[name]["label"] == ("exact" if kind == "MXFP4" else "storage exact")
        assert report[name]["max_error"] == 0


def test_q6_k_is_requantized_and_says_so(tmp_path: Path) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind.Q6_K, WIDE)
    report = converted(path, tmp_path / "out")
    assert report[EXPERT]["label"] == "requantized"
    assert report[EXPERT]["to"] == "affine 8-bit g32"
    assert report[EXPERT]["note"] == "Q6_K has no exact counterpart"
    assert 0 < report[EXPERT]["relative_rms_error"] < 0.01
    values = open_source(path).weights[EXPERT].pieces[0].values(0, 8)
    assert np.array_equal(values, library(path)[ggufs.spelled(EXPERT)][:8])


@pytest.mark.parametrize("kind", ["F32", "F16", "BF16"])
def test_plain_types_to_the_hub_layout(tmp_path: Path, kind: str) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind[kind])
    report = converted(path, tmp_path / "out", to="hub")
    assert report[""]["totals"]["labels"] == {"exact": len(models.weights()), "storage exact": 0, "requantized": 0}


def test_a_mixture_of_types_runs_alike_on_both_backends(tmp_path: Path) -> None:
    mixture = {"experts": Kind.Q4_0, "embed": Kind.Q8_0, "q_proj": Kind.Q5_1, "gate_proj": Kind.MXFP4}
    path = ggufs.write(
        tmp_path / "m.gguf", lambda name: next((kind for part, kind in mixture.items() if part in name), Kind.BF16)
    )
    converted(path, tmp_path / "out")
    assert close(logits(tmp_path / "out", "mlx"), logits(tmp_path / "out", "cuda"), 1e-4)


def test_gate_and_up_of_their_own(tmp_path: Path) -> None:
    fused = ggufs.write(tmp_path / "fused.gguf", lambda name: Kind.Q8_0)
    split = ggufs.write(tmp_path / "split.gguf", lambda name: Kind.Q8_0, split=True)
    for path in (fused, split):
        converted(path, tmp_path / path.stem)
    names = {"model.safetensors", "config.json"}
    assert all((tmp_path / "fused" / n).read_bytes() == (tmp_path / "split" / n).read_bytes() for n in names)
    mixed = {"gate_proj": Kind.Q8_0, "up_proj": Kind.Q4_0}
    path = ggufs.write(
        tmp_path / "mixed.gguf",
        lambda name: next((kind for part, kind in mixed.items() if f"switch_glu.{part}" in name), Kind.F16),
        split=True,
    )
    report = converted(path, tmp_path / "mixed")
    stack = report["model.decoder.layers.0.experts.gate_up_proj"]
    assert (stack["from"], stack["to"], stack["label"]) == ("Q4_0 + Q8_0", "affine 8-bit g32", "requantized")


def test_configuration_and_sampler(tmp_path: Path) -> None:
    settings = {"eb_max_steps": 12, "eb_t_min": 0.3, "eb_entropy_bound": 0.2}
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind.F16, settings=settings)
    converted(path, tmp_path / "out")
    found = json.loads((tmp_path / "out" / "config.json").read_text())
    wanted = models.config()
    assert found["canvas_length"] == wanted["canvas_length"]
    assert {key: found["text_config"][key] for key in wanted["text_config"]} == wanted["text_config"]
    sampler = json.loads((tmp_path / "out" / "generation_config.json").read_text())
    assert (sampler["max_denoising_steps"], sampler["t_min"], sampler["t_max"]) == (12, 0.3, 0.8)
    assert sampler["sampler_config"]["entropy_bound"] == 0.2
    assert sampler["eos_token_id"] == [1, 106, 50]


def test_tokenizer(tmp_path: Path) -> None:
    path = ggufs.write(tmp_path / "m.gguf", lambda name: Kind.F16)
    converted(path, tmp_path / "out")
    tokenizer = Tokenizer.from_file(str(tmp_path / "out" / "tokenizer.json"))
    assert tokenizer.encode("abc  ab<turn|>€").tokens == [
        *("<bos>", "abc", "▁▁", "ab", "<turn|>", "<0xE2>", "<0x82>", "<0xAC>")
    ]
    assert tokenizer.decode(tokenizer.encode("abc  ab\n€").ids) == "abc  ab\n€"
    added = tokenizer.get_added_tokens_decoder()
    assert added[106].special
    assert not added[60].special
    assert "bos_token" in (tmp_path / "out" / "chat_template.jinja").read_text()
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["bos_token"] == "<bos>"


def test_another_architecture_is_refused(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "m.gguf", "llama")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedError, match="architecture 'llama'"):
        preview(tmp_path / "m.gguf", Options())


def library(path: Path) -> dict[str, np.ndarray]:
    tensors = gguf.GGUFReader(path).tensors
    return {
        tensor.name: gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        .reshape(-1, int(tensor.shape[0]))
        .astype(np.float32)
        for tensor in tensors
    }

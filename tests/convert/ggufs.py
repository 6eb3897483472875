"""GGUF files of the tiny model, written by the gguf package."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from dgemma_convert.readers.gguf import _BLOCK, _ENCODER_SCALAR, _GLOBAL
from tests.convert import models

Kind = gguf.GGMLQuantizationType
Choose = Callable[[str], Kind]
ARCH = "diffusion-gemma"
TOKENS = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
MERGES = ["a b", "ab c", "▁ ▁"]
PYTHON_QUANTIZES = (Kind.Q4_0, Kind.Q4_1, Kind.Q5_0, Kind.Q5_1, Kind.Q8_0, Kind.MXFP4, Kind.F16, Kind.BF16)


def write(
    path: Path,
    choose: Choose,
    raw: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    split: bool = False,
    tensors: models.Tensors | None = None,
    tokenizer: Callable[[gguf.GGUFWriter, int], None] | None = None,
) -> Path:
    """The tiny model (or `tensors`) with every matrix in the type that `choose(canonical name)` says."""
    raw = raw or models.config()
    writer = gguf.GGUFWriter(path, ARCH)
    metadata(writer, raw["text_config"], raw["canvas_length"], settings or {})
    (tokenizer or vocabulary)(writer, raw["text_config"]["vocab_size"])
    tensors = tensors or models.weights(raw)
    for name, tensor in (split_experts(tensors) if split else tensors).items():
        values = tensor.numpy()
        kind = choose(name) if values.ndim > 1 else Kind.F32
        data = values if kind == Kind.F32 else encode(values, kind)
        writer.add_tensor(spelled(name), data, raw_dtype=kind)
    width = raw["text_config"]["global_head_dim"] // 2
    factors = np.where(np.arange(width) < width // 4, 1, 1e30).astype(np.float32)
    writer.add_tensor("rope_freqs.weight", factors)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def split_experts(tensors: models.Tensors) -> models.Tensors:
    """Gate and up stacks as tensors of their own, as older converters write them."""
    found: models.Tensors = {}
    for name, value in tensors.items():
        if name.endswith("gate_up_proj"):
            for half, part in zip(("gate_proj", "up_proj"), value.chunk(2, 1), strict=True):
                found[name.replace("gate_up_proj", f"switch_glu.{half}.weight")] = part.contiguous()
        else:
            found[name] = value
    return found


def metadata(writer: gguf.GGUFWriter, text: dict[str, Any], canvas: int, settings: dict[str, Any]) -> None:
    """What llama.cpp's converter writes for the architecture."""
    sliding = [kind == "sliding_attention" for kind in text["layer_types"]]
    heads = (text["num_global_key_value_heads"], text["num_key_value_heads"])
    for key, name in {
        "block_count": "num_hidden_layers",
        "context_length": "max_position_embeddings",
        "embedding_length": "hidden_size",
        "feed_forward_length": "intermediate_size",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_count": "num_experts",
        "expert_used_count": "top_k_experts",
        "attention.head_count": "num_attention_heads",
        "attention.key_length": "global_head_dim",
        "attention.key_length_swa": "head_dim",
        "attention.sliding_window": "sliding_window",
    }.items():
        writer.add_uint32(f"{ARCH}.{key}", text[name])
    writer.add_array(f"{ARCH}.attention.head_count_kv", [heads[slides] for slides in sliding])
    writer.add_array(f"{ARCH}.attention.sliding_window_pattern", sliding)
    writer.add_float32(f"{ARCH}.rope.freq_base", 1e6)
    writer.add_float32(f"{ARCH}.rope.freq_base_swa", 1e4)
    writer.add_float32(f"{ARCH}.attention.layer_norm_rms_epsilon", 1e-6)
    writer.add_float32(f"{ARCH}.final_logit_softcapping", 30.0)
    writer.add_uint32("diffusion.canvas_length", canvas)
    for key, value in settings.items():
        (writer.add_uint32 if isinstance(value, int) else writer.add_float32)(f"diffusion.{key}", value)


def vocabulary(writer: gguf.GGUFWriter, size: int) -> None:
    """Special tokens at Gemma's places, some words, byte tokens."""
    words = ["▁", "a", "b", "c", "ab", "abc", "▁▁", "\n", "é"]
    tokens = [*TOKENS, *words, *(f"<0x{byte:02X}>" for byte in (0xE2, 0x82, 0xAC))]
    tokens += [f"<unused{index}>" for index in range(size - len(tokens))]
    tokens[50], tokens[106] = "<|tool_response>", "<turn|>"
    types = [3] * 5 + [1] * len(words) + [6] * 3 + [4] * (size - 8 - len(words))
    types[50] = types[106] = 3
    writer.add_tokenizer_model("gemma4")
    writer.add_token_list(tokens)
    writer.add_token_scores([-1000.0] * size)
    writer.add_token_types(types)
    writer.add_token_merges(MERGES)
    for key, index in {"bos": 2, "eos": 1, "unknown": 3, "padding": 0, "mask": 4}.items():
        writer.add_uint32(f"tokenizer.ggml.{key}_token_id", index)
    writer.add_chat_template("{{ bos_token }}{{ messages[0].content }}")
    writer.add_bool("tokenizer.ggml.add_bos_token", True)


def encode(values: np.ndarray, kind: Kind) -> np.ndarray:
    """Rows in llama.cpp blocks; types that the package cannot quantize get blocks of random codes with sane scales."""
    if kind in PYTHON_QUANTIZES:
        return gguf.quants.quantize(values, kind)
    block, size = gguf.GGML_QUANT_SIZES[kind]
    count = values.size // block
    raw = np.random.default_rng(7).integers(0, 256, (count, size), dtype=np.uint8)
    scale = (values.reshape(count, block).std(-1) / 600).astype(np.float16).view(np.uint8).reshape(count, 2)
    if kind == Kind.Q6_K:
        raw[:, -2:] = scale
    else:
        raw[:, :2], raw[:, 2:4] = scale, scale
    return raw.reshape(*values.shape[:-1], -1)


def spelled(name: str) -> str:
    """The GGUF spelling of a canonical name."""
    whole = {canonical: short for short, canonical in _GLOBAL.items() if short != "self_cond_norm.weight"}
    if name in whole:
        return whole[name]
    _, _, rest = name.partition("layers.")
    layer, _, tail = rest.partition(".")
    if name.startswith("model.encoder."):
        return f"blk.{layer}.{_ENCODER_SCALAR}"
    return f"blk.{layer}." + next(short for short, canonical in _BLOCK.items() if canonical == tail)

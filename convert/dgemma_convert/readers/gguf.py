"""Reads a GGUF file of the architecture diffusion-gemma, through the gguf package.

The file holds no vision tensors. What it says about the model and the sampler becomes config.json and
generation_config.json; its vocabulary becomes tokenizer.json.
"""

from __future__ import annotations

import re
from pathlib import Path

from dgemma.errors import CheckpointError, UnsupportedError
from dgemma.names import DECODER, EMBEDDING, ENCODER
from dgemma_convert.blocks import BLOCKS
from dgemma_convert.foreign import Blocks
from dgemma_convert.pieces import Plain
from dgemma_convert.readers.ggufconfig import config, generation_config
from dgemma_convert.readers.ggufheader import Tensor, read_header
from dgemma_convert.readers.gguftokenizer import tokenizer_files
from dgemma_convert.source import Source, Stored, assemble
from dgemma_convert.stretch import Stretch

ARCHITECTURE = "diffusion-gemma"
_GLOBAL = {
    "token_embd.weight": EMBEDDING,
    "output.weight": "lm_head.weight",
    "output_norm.weight": DECODER + "norm.weight",
    "self_cond_pre_norm.weight": DECODER + "self_conditioning.pre_norm.weight",
    "self_cond_norm.weight": DECODER + "self_conditioning.pre_norm.weight",
    "self_cond_gate.weight": DECODER + "self_conditioning.gate_proj.weight",
    "self_cond_up.weight": DECODER + "self_conditioning.up_proj.weight",
    "self_cond_down.weight": DECODER + "self_conditioning.down_proj.weight",
}
_BLOCK = {
    "attn_norm.weight": "input_layernorm.weight",
    "attn_q.weight": "self_attn.q_proj.weight",
    "attn_k.weight": "self_attn.k_proj.weight",
    "attn_v.weight": "self_attn.v_proj.weight",
    "attn_output.weight": "self_attn.o_proj.weight",
    "attn_q_norm.weight": "self_attn.q_norm.weight",
    "attn_k_norm.weight": "self_attn.k_norm.weight",
    "post_attention_norm.weight": "post_attention_layernorm.weight",
    "ffn_norm.weight": "pre_feedforward_layernorm.weight",
    "ffn_gate.weight": "mlp.gate_proj.weight",
    "ffn_up.weight": "mlp.up_proj.weight",
    "ffn_down.weight": "mlp.down_proj.weight",
    "post_ffw_norm.weight": "post_feedforward_layernorm.weight",
    "post_ffw_norm_1.weight": "post_feedforward_layernorm_1.weight",
    "post_ffw_norm_2.weight": "post_feedforward_layernorm_2.weight",
    "pre_ffw_norm_2.weight": "pre_feedforward_layernorm_2.weight",
    "ffn_gate_inp.weight": "router.proj.weight",
    "ffn_gate_inp.scale": "router.scale",
    "ffn_down_exps.scale": "router.per_expert_scale",
    "ffn_gate_up_exps.weight": "experts.gate_up_proj",
    "ffn_gate_exps.weight": "experts.switch_glu.gate_proj.weight",
    "ffn_up_exps.weight": "experts.switch_glu.up_proj.weight",
    "ffn_down_exps.weight": "experts.down_proj",
    "layer_output_scale.weight": "layer_scalar",
}
_ENCODER_SCALAR = "enc_layer_output_scale.weight"
_COMPUTED = ("rope_freqs.weight",)
_NAME = re.compile(r"blk\.(\d+)\.(.+)")
_PLAIN = ("F32", "F16", "BF16")
_READ = (*_PLAIN, *BLOCKS, "Q6_K")


def read(path: Path) -> Source:
    """The model in the file `path`."""
    header = read_header(path)
    if (found := header.text("general.architecture", "")) != ARCHITECTURE:
        raise UnsupportedError(
            f"{path.name} holds a model of the architecture {found!r}.",
            f"Supported: {ARCHITECTURE}.",
        )
    if header.whole("split.count", 1) != 1:
        raise UnsupportedError(f"{path.name} is one part of several.", "Join them with llama-gguf-split --merge.")
    settings, notes = config(header)
    stored, dropped = {}, []
    for name, tensor in header.tensors.items():
        if name in _COMPUTED:
            dropped.append(name)
        else:
            stored[_canonical(name)] = _stored(tensor)
    weights, duplicates = assemble(stored, settings)
    files = generation_config(header) | tokenizer_files(header)
    return Source(path, "GGUF", settings, weights, duplicates, files, tuple(dropped), tuple(notes))


def _canonical(name: str) -> str:
    match = _NAME.fullmatch(name)
    if name in _GLOBAL:
        return _GLOBAL[name]
    if match and match[2] in _BLOCK:
        return f"{DECODER}layers.{match[1]}.{_BLOCK[match[2]]}"
    if match and match[2] == _ENCODER_SCALAR:
        return f"{ENCODER}layers.{match[1]}.layer_scalar"
    raise CheckpointError(f"The GGUF file has a tensor {name!r} that this model has no place for.")


def _stored(tensor: Tensor) -> Stored:
    kind, shape = tensor.kind, tensor.shape
    if kind not in _READ:
        raise UnsupportedError(f"{tensor.name} has the type {kind}.", f"Supported: {', '.join(_READ)}.")
    rows = tensor.nbytes // tensor.row_bytes if tensor.row_bytes else 0
    stretch = Stretch(tensor.path, tensor.start, rows, tensor.row_bytes)
    return Stored(Plain(stretch, kind) if kind in _PLAIN else Blocks(stretch, kind, shape[-1]), shape)

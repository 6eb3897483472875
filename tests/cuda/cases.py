"""Every kernel with the argument types and tile sizes of its launches on the released model."""

from __future__ import annotations

from typing import Any

from dgemma_cuda.kernels import attention, linear, moe, norm, packed, self_conditioning, vocab
from tests.cuda.ahead import Case

P16, PINT, PBYTE, P32, PLONG = "*bf16", "*i32", "*u8", "*fp32", "*i64"
FORMATS: dict[str, tuple[int, int, str, str, int]] = {
    "bf16": (packed.PLAIN.value, 1, P16, P16, 64),
    "affine4": (packed.AFFINE4.value, 64, PBYTE, P16, 64),
    "affine8": (packed.AFFINE8.value, 64, PBYTE, P16, 64),
    "mxfp4": (packed.MXFP4.value, 32, PBYTE, PBYTE, 64),
    "nvfp4": (packed.NVFP4.value, 16, PBYTE, PBYTE, 64),
    "mxfp8": (packed.MXFP8.value, 32, PBYTE, PBYTE, 64),
}


def _operand(name: str) -> tuple[dict[str, str], dict[str, Any]]:
    code, group, weight, scales, block = FORMATS[name]
    return {"weight": weight, "scales": scales, "biases": P16, "multipliers": P32}, {
        "FORMAT": code,
        "GROUP": group,
        "SCALED": False,
        "BK": block,
    }


def _moe(name: str) -> list[Case]:
    operand, constants = _operand(name)
    shared = {"order": PINT, "tiles": PINT, "starts": PINT, **operand, "x": P16, "out": P16, "K": "i32"}
    tiling = {**constants, "BM": moe.BM, "BN": moe.BN}
    return [
        Case(f"moe gate-up {name}", moe.gate_up_kernel, shared | {"I": "i32"}, tiling | {"TOP_K": 8}),
        Case(f"moe down {name}", moe.down_kernel, shared | {"routing": P32, "H": "i32"}, tiling),
    ]


CASES: list[Case] = [case for name in FORMATS for case in _moe(name)]
CASES.append(
    Case("moe combine", moe.combine_kernel, {"parts": P16, "out": P16, "H": "i32"}, {"TOP_K": 8, "BLOCK": 1024})
)


def _linear(name: str) -> Case:
    operand, constants = _operand(name)
    arguments = {**operand, "x": P16, "out": P16, "M": "i32", "N": "i32", "K": "i32"}
    return Case(f"linear {name}", linear.linear_kernel, arguments, constants | {"BM": linear.BM, "BN": linear.BN})


def _attention(head_dim: int, group: int, causal: bool) -> Case:
    sizes = attention.tiling(head_dim)
    names = {"queries": P16, "table": PINT, "pointers": PLONG, "out": P16, "query_stride": "i32", "out_stride": "i32"}
    window = 1024 if causal and head_dim == 256 else 0
    constants = {
        "GROUP": group,
        "CAUSAL": causal,
        "WINDOW": window,
        "D": head_dim,
        "BM": sizes["BM"],
        "BN": sizes["BN"],
    }
    kind = "causal" if causal else "canvas"
    return Case(
        f"attention {kind} {head_dim}",
        attention.attention_kernel,
        names,
        constants,
        sizes["num_warps"],
        sizes["num_stages"],
    )


def _store(head_dim: int) -> Case:
    names = {"keys": P16, "values": P16, "table": PINT, "pointers": PLONG, "owners": PINT}
    strides = dict.fromkeys(("key_head", "key_row", "value_head", "value_row"), "i32")
    return Case(f"attention store {head_dim}", attention.store_kernel, names | strides, {"D": head_dim}, warps=1)


def _gather(name: str) -> Case:
    operand, constants = _operand(name)
    constants = {key: constants[key] for key in ("FORMAT", "GROUP", "SCALED")}
    arguments = {"ids": PINT, "weights": P32, "counts": PINT, "table": operand["weight"], "scales": operand["scales"]}
    return Case(
        f"self-conditioning gather {name}",
        self_conditioning.gather_kernel,
        arguments | {"biases": P16, "multipliers": P32, "out": P16, "H": "i32"},
        constants | {"WIDTH": self_conditioning.WIDTH, "BATCH": 8, "BLOCK": 256},
    )


_ROW = {"logits": P16, "temperatures": P32, "V": "i32", "cap": "fp32"}
_SIGNAL = {"signal_top": P32, "signal_sum": P32}
_VOCAB = {"SIGNAL": 1, "BLOCK": vocab.BLOCK}
CASES += [_linear(name) for name in FORMATS]
CASES += [_attention(256, 2, False), _attention(512, 8, False), _attention(256, 2, True), _attention(512, 8, True)]
CASES += [_store(256), _store(512)]
CASES += [_gather(name) for name in FORMATS]
CASES += [
    Case(
        "vocab scan",
        vocab.scan_kernel,
        _ROW | {"partials": P32, "places": PINT, "blocks": "i32"},
        _VOCAB,
        warps=8,
        ragged=("blocks",),
    ),
    Case(
        "vocab pick",
        vocab.pick_kernel,
        _ROW
        | _SIGNAL
        | {"uniforms": P32, "greedy": PINT, "partials": P32, "places": PINT, "sampled": PINT, "argmax": PINT}
        | {"entropy": P32, "margin": P32, "blocks": "i32"},
        {"TINY": vocab.TINY, "BLOCKS": 64, "BLOCK": vocab.BLOCK},
        warps=8,
        ragged=("blocks",),
    ),
    Case("vocab weights", vocab.weights_kernel, _ROW | _SIGNAL | {"out": P16}, _VOCAB, warps=8),
    Case(
        "self-conditioning candidates",
        self_conditioning.candidates_kernel,
        _ROW
        | _SIGNAL
        | {"block_tops": P32, "ids_out": PINT, "weights_out": P32, "counts": PINT, "kept": P32, "reach": "fp32"}
        | {"blocks": "i32", "block_stride": "i32"},
        _VOCAB | {"WIDTH": self_conditioning.WIDTH},
        warps=8,
        ragged=("blocks", "block_stride"),
    ),
    Case(
        "norm onto residual",
        norm.rms_norm_kernel,
        {"x": P16, "weight": P32, "residual": P16, "out": P16, "width": "i32", "eps": "fp32"},
        {"WEIGHTED": True, "ADDED": True, "BLOCK": 4096},
    ),
    Case(
        "norm and rotation",
        norm.norm_rotate_kernel,
        {"x": P16, "weight": P32, "cos": P16, "sin": P16, "out": P16, "rows": "i32", "heads": "i32", "eps": "fp32"},
        {"HALF": 128},
        warps=1,
        ragged=("rows", "heads"),
    ),
]

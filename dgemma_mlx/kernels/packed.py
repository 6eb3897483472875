"""Decoding of stored weights inside a Metal kernel, and the staging of BK columns of them in threadgroup memory.

Matrix fragments are FRAGMENT wide and high; a staged row takes LD floats.
"""

from __future__ import annotations

PLAIN, AFFINE, MXFP4, NVFP4, MXFP8 = range(5)
FORMATS = {"affine": AFFINE, "mxfp4": MXFP4, "nvfp4": NVFP4, "mxfp8": MXFP8}
TENSORS = ["weight", "scales", "biases", "multipliers"]
FRAGMENT = 8
BK = 32
LD = BK + 4

DECODE = """
inline float e2m1(uint code) {
    half size = as_type<half>(ushort((code & 7) << 9)) * half(16384);
    return float(code & 8 ? -size : size);
}

inline float e4m3(uint code) {
    half size = as_type<half>(ushort((code & 127) << 7)) * half(256);
    return float(code & 128 ? -size : size);
}

template <int FORMAT>
inline float scale_of(float stored) {
    if (FORMAT == 2 || FORMAT == 4) return metal::exp2(stored - 127);
    return FORMAT == 3 ? e4m3(uint(stored)) : stored;
}

template <int FORMAT>
inline float weight_of(uint code, float scale, float bias) {
    if (FORMAT == 1) return float(code) * scale + bias;
    return (FORMAT == 4 ? e4m3(code) : e2m1(code)) * scale;
}
"""

HEADER = "#include <metal_simdgroup_matrix>\n" + DECODE

# Every lane of a threadgroup takes a share of BK columns from `k` of the matrix rows that ROW names, as floats in
# `tile`, LD a row; what lies outside is zero. MLX passes arrays of fewer than eight elements in another address space,
# so that no pointer to an input may be kept.
_STAGE = """
    for (uint at = thread; at < uint(COUNT) * (BK / PER); at += THREADS) {
        uint line = at / (BK / PER), column = k + at % (BK / PER) * PER;
        bool present = (INSIDE) && column < uint(K);
        size_t matrix_row = present ? size_t(ROW) : 0;
        uint target = line * LD + at % (BK / PER) * PER;
        if (FORMAT == 0) {
            tile[target] = present ? float(weight[matrix_row * K + column]) : 0;
        } else {
            uint word = present ? uint(weight[matrix_row * (K / PER) + column / PER]) : 0;
            size_t group_at = present ? matrix_row * (K / GROUP) + column / GROUP : 0;
            float scale = present ? scale_of<FORMAT>(float(scales[group_at])) : 0;
            float bias = present && FORMAT == 1 ? float(biases[group_at]) : 0;
            for (uint part = 0; part < PER; ++part)
                tile[target + part] = weight_of<FORMAT>(word >> (part * BITS) & ((1u << BITS) - 1), scale, bias);
        }
    }
"""


def stage(count: str, inside: str, row: str) -> str:
    """The staging loop over `count` lines; `inside` and `row` are expressions of `line`."""
    return _STAGE.replace("COUNT", count).replace("INSIDE", inside).replace("ROW", row)

"""Every Triton kernel against its twin on ugly shapes, outputs filled with NaN beforehand.

Run with TRITON_INTERPRET=1, which Triton reads when it is imported, or with DGEMMA_CHECK_DEVICE naming a GPU. Prints a
JSON object a check: its name and, where it failed, why. DGEMMA_CHECK and DGEMMA_CHECK_SKIP choose by part of a name.
"""

from __future__ import annotations

import json
import os
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from dgemma.quantization import QuantSpec
from dgemma_cuda.attention import attend as plain_attend
from dgemma_cuda.inputs import Ragged
from dgemma_cuda.kernels import fused, linear, naive, operand
from dgemma_cuda.moe import experts as plain_experts
from dgemma_cuda.norm import norm_rotate as plain_norm_rotate
from dgemma_cuda.norm import rms_norm as plain_rms_norm
from dgemma_cuda.quant import (
    Packed,
    PackedEmbedding,
    PackedExperts,
    PackedLinear,
    PlainEmbedding,
    PlainExperts,
    PlainLinear,
)
from dgemma_cuda.vocab import Draws, softcap
from tests.close import assert_close, outside
from tests.cuda import steps

DEVICE = os.environ.get("DGEMMA_CHECK_DEVICE", "cpu")
BF16 = torch.bfloat16
SPECS = {
    "affine4": QuantSpec(4, 64),
    "affine8": QuantSpec(8, 32),
    "mxfp4": QuantSpec(4, 32, "mxfp4"),
    "nvfp4": QuantSpec(4, 16, "nvfp4"),
    "mxfp8": QuantSpec(8, 32, "mxfp8"),
}
Check = Callable[[], None]


def pack(rows: tuple[int, ...], width: int, spec: QuantSpec, multiplier: bool, draw: torch.Generator) -> Packed:
    """Random codes and scales near those of unit weights."""
    words = torch.randint(-(2**31), 2**31, (*rows, width * spec.bits // 32), generator=draw, dtype=torch.int64)
    groups = (*rows, width // spec.group_size)
    biases = None
    if spec.mode == "affine":
        scales = (torch.rand(groups, generator=draw) / 2 ** (spec.bits - 1)).to(BF16)
        biases = (-scales.float() * 2 ** (spec.bits - 1)).to(BF16)
    elif spec.mode == "nvfp4":
        scales = (torch.rand(groups, generator=draw) + 0.01).to(torch.float8_e4m3fn).view(torch.uint8)
    else:
        scales = torch.randint(120, 126, groups, generator=draw).to(torch.uint8)
    if spec.mode == "mxfp8":
        words = torch.randint(0, 0x70, (*rows, width // 4, 4), generator=draw).to(torch.uint8)
        words = words.view(torch.int32)[..., 0].long()
    per_row = torch.rand(rows, generator=draw) + 0.5 if multiplier else None
    return Packed(words.to(torch.int32), scales, biases, per_row, spec)


def norms() -> None:
    draw = torch.Generator(DEVICE).manual_seed(0)
    for rows, width in ((3, 33), (5, 2816), (1, 64)):
        x, residual = torch.randn(2, rows, width, generator=draw).to(BF16) * 3
        weight = torch.randn(width, generator=draw)
        exact = naive.rms_norm(x.float(), weight, 1e-6)
        assert_close(
            "rms_norm", exact, plain_rms_norm(x, weight, 1e-6).float(), fused.rms_norm(x, weight, 1e-6).float()
        )
        found = fused.rms_norm(x, None, 1e-6).float()
        assert_close("rms_norm", naive.rms_norm(x.float(), None, 1e-6), plain_rms_norm(x, None, 1e-6).float(), found)
        plain = (residual + plain_rms_norm(x, weight, 1e-6)).float()
        found = fused.add_norm(residual, x, weight, 1e-6).float()
        assert_close("add_norm", residual.float() + exact, plain, found)


def rotations() -> None:
    draw = torch.Generator(DEVICE).manual_seed(1)
    x, weight = torch.randn(7, 3, 64, generator=draw), torch.randn(64, generator=draw)
    turn = torch.rand(7, 1, 32, generator=draw) * 6
    low = (turn.cos().to(BF16), turn.sin().to(BF16))
    exact = naive.norm_rotate(x.to(BF16).float(), weight, (turn.cos(), turn.sin()), 1e-6)
    plain = plain_norm_rotate(x.to(BF16), weight, low, 1e-6)
    assert_close("norm_rotate", exact, plain.float(), fused.norm_rotate(x.to(BF16), weight, low, 1e-6).float())


Sequence = tuple[int, tuple[int, int, int], bool]  # Rows, span, and whether it is causal.


def ragged(sequences: list[Sequence], caches: list[Tensor], window: int | None) -> Ragged:
    """`caches` hold keys and values [2, kv heads, capacity, D] of each sequence."""
    starts = [sum(rows for rows, _, _ in sequences[:index]) for index in range(len(sequences))]
    table = [
        (start, rows, *span, held.shape[2], int(causal), 0)
        for start, (rows, span, causal), held in zip(starts, sequences, caches, strict=True)
    ]
    owners = [index for index, (rows, _, _) in enumerate(sequences) for _ in range(rows)]
    return Ragged(
        table=torch.tensor(table, dtype=torch.int32),
        pointers=torch.tensor([[held[0].data_ptr(), held[1].data_ptr()] for held in caches]),
        owners=torch.tensor(owners, dtype=torch.int32),
        kv_heads=caches[0].shape[1],
        longest=max(rows for rows, _, _ in sequences),
        causal=any(causal for _, _, causal in sequences),
        window=window,
        segments=(),
        layer=0,
    )


def attention(sequences: list[Sequence], head_dim: int, window: int | None) -> Check:
    """All in one launch, against each alone; behind the end of a cache lies NaN."""

    def check() -> None:
        draw = torch.Generator(DEVICE).manual_seed(head_dim)
        queries = (torch.randn(4, sum(rows for rows, _, _ in sequences), head_dim, generator=draw) * 0.3).to(BF16)
        caches = []
        for index, (_, span, _) in enumerate(sequences):
            held = torch.randn(2, 2, span[1] + 13 * index + 3, head_dim, generator=draw).to(BF16)
            held[:, :, span[1] :] = float("nan")
            caches.append(held)
        found, start = fused.attend(queries, ragged(sequences, caches, window)), 0
        for (rows, span, causal), (keys, values) in zip(sequences, caches, strict=True):
            mine = queries[:, start : start + rows]
            exact = naive.attend(mine.float(), keys.float(), values.float(), span, causal, window)
            plain = plain_attend(mine, keys, values, span, causal, window)
            assert_close("attention", exact, plain.float(), found[start : start + rows].float())
            start += rows

    return check


def stores() -> None:
    draw = torch.Generator(DEVICE).manual_seed(6)
    sequences: list[Sequence] = [(3, (0, 7, 4), True), (5, (2, 20, 15), False)]
    caches = [torch.full((2, 2, capacity, 32), float("nan"), dtype=BF16) for capacity in (9, 31)]
    keys = torch.randn(2, 8, 32, generator=draw).to(BF16)
    values = torch.randn(8, 2, 32, generator=draw).to(BF16).transpose(0, 1)
    fused.store(keys, values, ragged(sequences, caches, None))
    for (rows, (_, _, place), _), held, start in zip(sequences, caches, (0, 3), strict=True):
        for written, given in zip(held, (keys, values), strict=True):
            assert torch.equal(written[:, place : place + rows], given[:, start : start + rows]), "store: values"
        assert held.isfinite().sum() == 2 * 2 * rows * 32, "store: more or less than its slots"


def products(name: str) -> Check:
    def check() -> None:
        draw = torch.Generator(DEVICE).manual_seed(2)
        for rows, out, width in ((3, 70, 192), (65, 33, 320)):
            x = torch.randn(rows, width, generator=draw).to(BF16)
            if name == "bf16":
                matrix: Any = PlainLinear(torch.randn(out, width, generator=draw).to(BF16))
                exact = x.float() @ matrix.weight.float().T
            else:
                matrix = PackedLinear(pack((out,), width, SPECS[name], rows == 3, draw))
                exact = matrix(x.float())
            weight = operand.of(matrix)
            assert weight is not None
            assert_close(f"linear {name}", exact, matrix(x).float(), linear.linear(x, weight).float())

    return check


def mixture(name: str, biased: bool) -> Check:
    """`biased` sends every token to the same experts, so that one of them owns more rows than any capacity."""

    def check() -> None:
        draw = torch.Generator(DEVICE).manual_seed(3)
        count, tokens, hidden, inner, top_k = 5, 37, 64, 128 if name != "bf16" else 72, 2
        x = torch.randn(tokens, hidden, generator=draw).to(BF16)
        ids = torch.rand(tokens, count, generator=draw).topk(top_k).indices
        ids = torch.tensor([[3, 1]]).expand(tokens, 2).contiguous() if biased else ids
        routing = torch.rand(tokens, top_k, generator=draw)
        if name == "bf16":
            low = [torch.randn(count, *size, generator=draw) * 0.1 for size in ((2 * inner, hidden), (hidden, inner))]
            gate_up, down = (PlainExperts(each.to(BF16)) for each in low)
            wide = [PlainExperts(each.weight.float()) for each in (gate_up, down)]
        else:
            shapes = (((count, 2 * inner), hidden), ((count, hidden), inner))
            gate_up, down = (PackedExperts(pack(*shape, SPECS[name], not biased, draw)) for shape in shapes)
            wide = [gate_up, down]
        exact = naive.experts(x.float(), ids, routing, *wide)
        plain = plain_experts(x, ids, routing, gate_up, down)
        found = fused.experts(x, ids, routing, gate_up, down)
        assert_close(f"moe {name}", exact, plain.float(), found.float())

    return check


def vocabulary(kind: str, sparse: bool, vocab: int = 4096 + 700) -> Check:
    def check() -> None:
        draw = torch.Generator(DEVICE).manual_seed(4)
        rows, width, first = 9, 64, 2
        weight = torch.randn(vocab, width, generator=draw) * (0.01 if kind == "flat" else 0.5)
        table: Any = PlainEmbedding(weight.to(BF16))
        if kind in SPECS:
            table = PackedEmbedding(pack((vocab,), width, SPECS[kind], False, draw), BF16)
        x = torch.randn(rows, width, generator=draw).to(BF16)
        if kind == "one-hot":
            x = (table.weight[torch.arange(rows) * 400] * 8).to(BF16)
        draws = Draws(
            torch.rand(rows, generator=draw) + 0.4, torch.rand(rows, generator=draw), torch.arange(rows) % 3 == 0
        )
        draws.uniforms[4], draws.uniforms[5] = 0.0, 1 - 2**-24
        arguments = (30.0, draws, first, BF16, sparse)
        exact, soft = naive.head(table, x, *arguments)
        picks, found = fused.head(table, x, *arguments)
        wide = naive.head(Wide(table), x.float(), *arguments)[1]
        assert torch.equal(picks.argmax, exact.argmax), f"vocab {kind}: argmax"
        drawn, greedy = ~draws.greedy, draws.greedy
        assert torch.equal(picks.sampled[greedy], exact.argmax[greedy]), f"vocab {kind}: greedy"
        scores = softcap(table.logits(x), 30.0)[drawn] / draws.temperatures[drawn, None]
        assert outside(scores, draws.uniforms[drawn], picks.sampled[drawn]) < 2e-6, f"vocab {kind}: sampled"
        assert (picks.entropy - exact.entropy).abs().max() < 1e-4, f"vocab {kind}: entropy"
        largest = softcap(table.logits(x), 30.0).abs().amax(-1)  # the softcap of a small score has an absolute error
        apart = (picks.margin - exact.margin).abs() * largest / (1 + largest)
        assert apart.max() < 1e-5, f"vocab {kind}: margin {apart.max():.1e}"
        assert_close(f"self-conditioning {kind}", wide, soft.float(), found.float())

    return check


class Wide:
    """An embedding whose logits are those of the low precision and whose mixture is exact."""

    def __init__(self, table: Any) -> None:
        self._table = table

    def logits(self, x: Tensor) -> Tensor:
        return self._table.logits(x.to(BF16))

    def mix(self, shares: Tensor) -> Tensor:
        ids = torch.arange(shares.shape[1])
        return shares.float() @ self._table.rows(ids).float()


def checks() -> Iterator[tuple[str, Check]]:
    yield "norms", norms
    yield "rotations", rotations
    canvas: Sequence = (33, (5, 122, 89), False)
    causal: Sequence = (70, (20, 113, 43), True)
    yield "attention-canvas", attention([canvas], 64, None)
    yield "attention-canvas-one-key", attention([(2, (0, 1, 0), False)], 32, None)
    yield "attention-causal", attention([(70, (0, 113, 43), True)], 32, None)
    yield "attention-window", attention([causal], 32, 24)
    yield "attention-token", attention([(1, (0, 113, 112), True)], 32, None)
    yield "attention-canvases", attention([canvas, (5, (0, 40, 35), False), (33, (70, 300, 267), False)], 32, 24)
    yield "attention-mixed", attention([causal, (1, (0, 9, 8), True), canvas], 32, 24)
    yield "stores", stores
    for name in ("bf16", *SPECS):
        yield f"linear-{name}", products(name)
        yield f"moe-{name}", mixture(name, False)
    yield "moe-one-expert", mixture("affine4", True)
    for kind in ("random", "flat", "one-hot"):
        for sparse in (False, True):
            yield f"vocab-{kind}-{'sparse' if sparse else 'exact'}", vocabulary(kind, sparse)
    yield "vocab-short", vocabulary("random", True, 100)
    for name in SPECS:
        yield f"gather-{name}", vocabulary(name, True, 600)
    yield from steps.checks()


@contextmanager
def poisoned() -> Iterator[None]:
    """Fresh tensors hold NaN, so that an output nobody wrote shows."""
    empty, empty_like, new_empty = torch.empty, torch.empty_like, Tensor.new_empty

    def poison(made: Tensor) -> Tensor:
        return made.fill_(float("nan") if made.is_floating_point() else -7)

    def method(self: Tensor, *size: Any, **rest: Any) -> Tensor:
        return poison(new_empty(self, *size, **rest))

    with (
        mock.patch.object(torch, "empty", lambda *size, **rest: poison(empty(*size, **rest))),
        mock.patch.object(torch, "empty_like", lambda *like, **rest: poison(empty_like(*like, **rest))),
        mock.patch.object(Tensor, "new_empty", method),
    ):
        yield


def main() -> None:
    torch.set_num_threads(1)
    torch.set_default_device(DEVICE)
    chosen, skipped = os.environ.get("DGEMMA_CHECK", ""), os.environ.get("DGEMMA_CHECK_SKIP")
    for name, check in checks():
        if chosen not in name or (skipped and skipped in name):
            continue
        failure = ""
        try:
            with poisoned():
                check()
        except Exception as error:
            failure = str(error) if isinstance(error, AssertionError) else traceback.format_exc()
        print(json.dumps({"check": name, "failure": failure}), flush=True)


if __name__ == "__main__":
    main()

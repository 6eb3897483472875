"""Checks of whole recorded steps with the Triton kernels; `checks` runs them. On a GPU they record real CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from benchmarks import step_weights
from benchmarks.ops.measure import device
from dgemma.backend import DenoiseJob, EncodeJob, Job, Prediction
from dgemma.batch import lay_out
from dgemma.config import LayerShape, ModelConfig, Rope
from dgemma.quantization import QuantSpec
from dgemma_cuda import cache, moe, norm, vocab
from dgemma_cuda.attention import rotations
from dgemma_cuda.cache import Context
from dgemma_cuda.inputs import Form
from dgemma_cuda.kernels import Kernels, choose, fused
from dgemma_cuda.kernels.binding import bound
from dgemma_cuda.model import Model
from dgemma_cuda.step import Recorder, Run, Step, Steps
from dgemma_cuda.vocab import Draws

CANVAS, VOCAB = 4, 1500
aten = torch.ops.aten
SYNCING = {
    aten._local_scalar_dense,
    aten.nonzero,
    aten.is_nonzero,
    aten.masked_select,
    aten.equal,
    aten._unique2,
    aten.lift_fresh,
}


class NoLook(TorchDispatchMode):
    """Raises where an operation would make the host wait for the device or copy host memory to it.

    On a CPU some conversions read memory without an operation, so that they are replaced.
    """

    def __enter__(self) -> Any:
        self._patches = [mock.patch.object(torch.Tensor, name, _look) for name in ("tolist", "numpy", "__array__")]
        for patch in self._patches:
            patch.start()
        return super().__enter__()

    def __exit__(self, *details: Any) -> None:
        for patch in self._patches:
            patch.stop()
        super().__exit__(*details)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        assert packet not in SYNCING, f"{func} looks at the device"
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
            kinds = [each.dtype for each in args[1] if each is not None]
            assert torch.bool not in kinds and torch.uint8 not in kinds, f"{func} by a mask looks at the device"
        return func(*args, **(kwargs or {}))


def _look(*arguments: Any, **rest: Any) -> Any:
    raise AssertionError("a tensor is converted on the host")


def config() -> ModelConfig:
    """Two layers, one of each kind, with a window that sequences outgrow."""
    layers = (
        LayerShape("sliding_attention", 1, 32, Rope("default", 1e4)),
        LayerShape("full_attention", 1, 64, Rope("proportional", 1e6, 0.25)),
    )
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    sizes |= {"num_experts": 4, "top_k_experts": 2, "num_attention_heads": 2, "canvas_length": CANVAS}
    return replace(step_weights.config(small=True), **sizes, sliding_window=6, layers=layers)


def on_gpu() -> bool:
    """There everything is Triton; the interpreter is too slow for more than what a check is about."""
    return device().type == "cuda"


def plain_kernels() -> Kernels:
    """Torch operations, but for attention and cache writes, which read their tables on the device."""
    functions = (norm.rms_norm, norm.add_norm, norm.norm_rotate, fused.store, fused.attend)
    return Kernels(*functions, moe.experts, vocab.head, {"linear": "torch"})


def model(spec: QuantSpec | None, loudness: float, kernels: Kernels) -> Model:
    """Random; at a small `loudness` logits are flat, so that every row of a sparse signal is too wide."""
    torch.manual_seed(0)
    made = step_weights.model(config(), spec, kernels)
    made = replace(made, norm=made.norm * loudness)
    return bound(made) if kernels.names["linear"] == "triton" else made


class Sequences:
    """Two sequences that step together."""

    def __init__(self, made: Model, steps: Steps) -> None:
        self.model, self.steps = made, steps
        self.contexts = [Context(made.config, made.device, made.dtype) for _ in range(2)]

    def pass_of(self, jobs: list[Job]) -> Prediction | None:
        with torch.inference_mode():
            return self.steps.run(self.model, lay_out(jobs))

    def history(self) -> Iterator[Prediction | None]:
        """Prompts of different lengths, then canvases; commits share a pass with the canvas behind them."""
        first, second = self.contexts
        yield self.pass_of([EncodeJob(first, ids(3, 0)), EncodeJob(second, ids(9, 1))])
        for block in range(3):
            for context in self.contexts:
                context.settle()
                context.start_canvas()
            commits = [EncodeJob(context, ids(CANVAS, block)) for context in self.contexts if block]
            for step in range(2):
                canvases = [self.canvas(context, 10 * block + step) for context in self.contexts]
                yield self.pass_of([*commits, *canvases] if step == 0 else list(canvases))
        yield self.pass_of([EncodeJob(first, ids(1, 3), "last")])
        yield self.pass_of([EncodeJob(first, ids(1, 4), "last")])

    def canvas(self, context: Context, seed: int) -> DenoiseJob:
        draw = np.random.default_rng(seed + context.length)
        uniforms = draw.random(CANVAS, np.float32) if seed % 2 else None
        return DenoiseJob(context, ids(CANVAS, seed), 0.4 + seed / 100, uniforms)


def ids(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng([seed, count]).integers(0, VOCAB, count).astype(np.int32)


class Counting:
    """A recorder that counts: a CUDA graph on a GPU; on a CPU a replay is the function itself."""

    def __init__(self) -> None:
        self.recorded = 0
        self._record: Recorder = _graphs() if device().type == "cuda" else lambda run: run

    def __call__(self, run: Run) -> Run:
        self.recorded += 1
        return self._record(run)


def _graphs() -> Recorder:
    from dgemma_cuda.graph import Graphs

    return Graphs()


def replays(spec: QuantSpec | None, loudness: float, sparse: bool) -> Callable[[], None]:
    """Replayed passes, over buffers that grow and windows that slide, against fresh ones with a finished head."""

    def check() -> None:
        made = model(spec, loudness, choose(device(), "auto") if on_gpu() else plain_kernels())
        counting, seen = Counting(), {}
        eager = replace(made, kernels=replace(made.kernels, unfinished_head=None))
        recorded = Steps(sparse, made.dtype, counting)
        left = Sequences(made, recorded)
        right = Sequences(eager, Steps(sparse, made.dtype, None, "checks"))
        with mock.patch.object(cache, "_ROUND", 4):
            for mine, theirs in zip(left.history(), right.history(), strict=True):
                same(mine, theirs)
                for form, step in recorded._kept.items():
                    addresses = (*step.inputs.addresses, step.picked.data_ptr())
                    assert seen.setdefault(form, addresses) == addresses, "a buffer moved"
                for one, other in zip(left.contexts, right.contexts, strict=True):
                    close(one, other)
        assert left.contexts[1].capacity(1) > 16, "no buffer grew"
        assert left.contexts[1].slots(0, (9, 9, 9))[0] < 9, "no window slid"
        assert counting.recorded == 3, f"{counting.recorded} recordings of three forms that come back"
        assert recorded.name == "recorded"

    return check


def wide_rows() -> None:
    """A sparse signal whose rows are all too wide is finished by the host, and equals the exact one."""
    kernels = replace(plain_kernels(), unfinished_head=fused.unfinished_head)
    sparse = Sequences(model(None, 0.02, kernels), Steps(True, torch.float32, None, "checks"))
    exact = Sequences(model(None, 0.02, plain_kernels()), Steps(False, torch.float32, None, "checks"))
    jobs: Callable[[Sequences], list[Job]] = lambda each: [  # noqa: E731
        EncodeJob(each.contexts[0], ids(2, 0), "all"),
        each.canvas(each.contexts[1], 1),
    ]
    same(sparse.pass_of(jobs(sparse)), exact.pass_of(jobs(exact)))
    close(sparse.contexts[1], exact.contexts[1])


def same(mine: Prediction | None, theirs: Prediction | None) -> None:
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        assert np.array_equal(mine.argmax, theirs.argmax), "argmax"
        assert np.array_equal(mine.sampled, theirs.sampled), "sampled"
        assert np.abs(mine.entropy - theirs.entropy).max() < 1e-3, "entropy"
        assert np.abs(mine.margin - theirs.margin).max() < 1e-3, "margin"


def close(one: Context, other: Context) -> None:
    assert one.length == other.length
    assert (one.signal is None) == (other.signal is None)
    if one.signal is not None and other.signal is not None:
        scale = other.signal.float().abs().max()
        assert (one.signal - other.signal).float().abs().max() <= 1e-2 * scale, "signal"


def no_look(spec: QuantSpec | None, sparse: bool) -> Callable[[], None]:
    """A step of a commit and two canvases never looks at the device."""

    def check() -> None:
        made = model(spec, 1.0, choose(device(), "auto"))
        sequences = Sequences(made, Steps(sparse, made.dtype, None, "checks"))
        first, second = sequences.contexts
        second.signal = torch.ones(CANVAS, made.config.hidden_size, dtype=made.dtype, device=made.device)
        commit = EncodeJob(first, ids(2, 2), "all")
        batch = lay_out([commit, *(sequences.canvas(each, 3) for each in (first, second))])
        step = Step(made, Form.of(batch), sparse, made.dtype)
        with torch.inference_mode():
            step.fill(batch)
            _fill_caches_of_constants(made)
            step.picked.fill_(-1)
            with NoLook():
                step.run()
            step.read(batch)
        assert (step.picked[:2] >= 0).all(), "not all rows are predicted"

    return check


def _fill_caches_of_constants(made: Model) -> None:
    """What is copied to the device once and kept: a first, eager pass does it."""
    made.embed_tokens.rows(torch.zeros(1, dtype=torch.int32, device=made.device))
    for layer in made.layers:
        rotations(layer.self_attn.shape, torch.zeros(1, dtype=torch.int32, device=made.device), made.dtype)


def looks_are_noticed() -> None:
    """What `no_look` must not find is found where it is."""
    mask = torch.ones(3, device=device()) > 0
    values = torch.arange(3.0, device=device())
    looks: dict[str, Callable[[], object]] = {
        "item": lambda: values.sum().item(),
        "branch": lambda: bool(mask.any()),
        "nonzero": lambda: mask.nonzero(),
        "mask": lambda: values[mask],
        "assignment by mask": lambda: values.__setitem__(mask, 0.0),
        "constant": lambda: torch.tensor([1.0], device=device()),
        "list": lambda: values.tolist(),
        "finished head": lambda: _finished_head(model(None, 1.0, plain_kernels())),
    }
    for name, look in looks.items():
        try:
            with NoLook():
                look()
        except AssertionError:
            continue
        raise AssertionError(f"{name}: a look at the device went unnoticed")


def _finished_head(made: Model) -> None:
    x = torch.ones(2, made.config.hidden_size, device=made.device, dtype=made.dtype)
    draws = Draws(*(torch.ones(2, device=made.device) for _ in range(2)), torch.ones(2, device=made.device) > 0)
    made.kernels.head(made.embed_tokens, x, 30.0, draws, 0, made.dtype, True)


def checks() -> Iterator[tuple[str, Callable[[], None]]]:
    four = QuantSpec(4, 64)
    yield "step-looks-are-noticed", looks_are_noticed
    yield "step-replays", replays(four if on_gpu() else None, 1.0, True)
    yield "step-wide-rows", wide_rows
    yield "step-no-look", no_look(QuantSpec(4, 16, "nvfp4"), True)
    if on_gpu():
        yield "step-no-look-exact", no_look(four, False)
        yield "step-replays-flat", replays(None, 0.02, True)
        yield "step-replays-exact", replays(QuantSpec(4, 16, "nvfp4"), 1.0, False)

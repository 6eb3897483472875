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
from dgemma_cuda import cache
from dgemma_cuda.cache import Context
from dgemma_cuda.inputs import Form
from dgemma_cuda.kernels import choose
from dgemma_cuda.kernels.binding import bound
from dgemma_cuda.model import Model
from dgemma_cuda.step import Recorder, Run, Step, Steps
from dgemma_cuda.vocab import Draws

CANVAS, VOCAB = 8, 1500
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
    """Raises where an operation would make the host wait for the device or copy host memory to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func.overloadpacket
        assert packet not in SYNCING, f"{func} looks at the device"
        if packet in (aten.index, aten.index_put, aten.index_put_, aten._index_put_impl_):
            kinds = [each.dtype for each in args[1] if each is not None]
            assert torch.bool not in kinds and torch.uint8 not in kinds, f"{func} by a mask looks at the device"
        return func(*args, **(kwargs or {}))


def config() -> ModelConfig:
    """Two layers, one of each kind, with a window that sequences outgrow."""
    layers = (
        LayerShape("sliding_attention", 1, 32, Rope("default", 1e4)),
        LayerShape("full_attention", 1, 64, Rope("proportional", 1e6, 0.25)),
    )
    sizes = {"vocab_size": VOCAB, "hidden_size": 64, "intermediate_size": 64, "moe_intermediate_size": 64}
    sizes |= {"num_experts": 4, "top_k_experts": 2, "num_attention_heads": 2, "canvas_length": CANVAS}
    return replace(step_weights.config(small=True), **sizes, sliding_window=24, layers=layers)


def model(spec: QuantSpec | None, loudness: float) -> Model:
    """Random; at a small `loudness` logits are flat, so that every row of a sparse signal is too wide."""
    torch.manual_seed(0)
    made = step_weights.model(config(), spec, choose(device(), "auto"))
    return bound(replace(made, norm=made.norm * loudness))


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
        yield self.pass_of([EncodeJob(first, ids(5, 0)), EncodeJob(second, ids(17, 1))])
        for block in range(4):
            for context in self.contexts:
                context.settle()
                context.start_canvas()
            commits = [EncodeJob(context, ids(CANVAS, block)) for context in self.contexts if block]
            for step in range(3):
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
        made, counting, seen = model(spec, loudness), Counting(), {}
        eager = replace(made, kernels=replace(made.kernels, unfinished_head=None))
        recorded = Steps(sparse, made.dtype, counting)
        left = Sequences(made, recorded)
        right = Sequences(eager, Steps(sparse, made.dtype, None, "checks"))
        with mock.patch.object(cache, "_ROUND", 16):
            for mine, theirs in zip(left.history(), right.history(), strict=True):
                same(mine, theirs)
                for form, step in recorded._kept.items():
                    addresses = (*step.inputs.addresses, step.picked.data_ptr())
                    assert seen.setdefault(form, addresses) == addresses, "a buffer moved"
                for one, other in zip(left.contexts, right.contexts, strict=True):
                    close(one, other)
        assert left.contexts[1].capacity(1) > 32, "no buffer grew"
        assert counting.recorded == 3, f"{counting.recorded} recordings of three forms that come back"
        assert recorded.name == "recorded"

    return check


def same(mine: Prediction | None, theirs: Prediction | None) -> None:
    assert (mine is None) == (theirs is None)
    if mine is not None and theirs is not None:
        assert np.array_equal(mine.argmax, theirs.argmax), "argmax"
        assert np.array_equal(mine.sampled, theirs.sampled), "sampled"
        assert np.abs(mine.entropy - theirs.entropy).max() < 1e-3, "entropy"


def close(one: Context, other: Context) -> None:
    assert one.length == other.length
    assert (one.signal is None) == (other.signal is None)
    if one.signal is not None and other.signal is not None:
        scale = other.signal.float().abs().max()
        assert (one.signal - other.signal).float().abs().max() <= 1e-2 * scale, "signal"


def no_look(spec: QuantSpec | None, sparse: bool) -> Callable[[], None]:
    """A step of a commit and two canvases never looks at the device; what does look is noticed."""

    def check() -> None:
        made = model(spec, 1.0)
        sequences = Sequences(made, Steps(sparse, made.dtype, None, "checks"))
        first, second = sequences.contexts
        sequences.pass_of([EncodeJob(first, ids(5, 0)), EncodeJob(second, ids(17, 1))])
        sequences.pass_of([sequences.canvas(first, 1), sequences.canvas(second, 2)])
        batch = lay_out(
            [EncodeJob(first, ids(CANVAS, 2), "all"), *(sequences.canvas(each, 3) for each in (first, second))]
        )
        step = Step(made, Form.of(batch), sparse, made.dtype)
        with torch.inference_mode():
            step.fill(batch)
            with NoLook():
                step.run()
            step.read(batch)
            assert (step.picked[0] >= 0).all()
            for looking in (lambda: torch.tensor([1.0]), lambda: _finished_head(made)):
                try:
                    with NoLook():
                        looking()
                except AssertionError:
                    continue
                raise AssertionError("a look at the device went unnoticed")

    return check


def _finished_head(made: Model) -> None:
    x = torch.ones(2, made.config.hidden_size, device=made.device, dtype=made.dtype)
    draws = Draws(*(torch.ones(2, device=made.device) for _ in range(2)), torch.ones(2, device=made.device) > 0)
    made.kernels.head(made.embed_tokens, x, 30.0, draws, 0, made.dtype, True)


def checks() -> Iterator[tuple[str, Callable[[], None]]]:
    four = QuantSpec(4, 64)
    yield "step-replays-affine4-sparse", replays(four, 1.0, True)
    yield "step-replays-plain-flat", replays(None, 0.02, True)
    yield "step-replays-plain-exact", replays(None, 1.0, False)
    for name, spec in (("plain", None), ("nvfp4", QuantSpec(4, 16, "nvfp4"))):
        yield f"step-no-look-{name}", no_look(spec, True)
    yield "step-no-look-exact", no_look(four, False)

"""What is recorded, what is kept, and what happens where recording fails; on a CPU, where a replay is a plain call."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from benchmarks import step_weights
from dgemma.backend import BackendOptions, DenoiseJob, Prediction, load_backend
from dgemma.batch import lay_out
from dgemma_cuda import step
from dgemma_cuda.cache import Context
from dgemma_cuda.kernels import choose
from dgemma_cuda.model import Model
from dgemma_cuda.step import Run, Steps


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return step_weights.model(step_weights.config(small=True), None, choose(torch.device("cpu"), "auto"))


def passes(model: Model, steps: Steps, rows: tuple[int, ...]) -> list[Prediction | None]:
    """Canvases of so many rows, all of one sequence, each without a signal."""
    context = Context(model.config, model.device, model.dtype)
    found = []
    for count in rows:
        context.start_canvas()
        job = DenoiseJob(context, np.arange(count, dtype=np.int32), 0.5)
        with torch.inference_mode():
            found.append(steps.run(model, lay_out([job])))
    return found


def test_the_second_pass_of_a_form_is_recorded_and_few_are_kept(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(step, "_KEPT", 2)
    replayed: list[int] = []

    def record(run: Run) -> Run:
        number = len(replayed)
        replayed.append(0)

        def replay() -> None:
            replayed[number] += 1
            run()

        return replay

    steps = Steps(False, model.dtype, record)
    found = passes(model, steps, (2, 2, 2, 3, 3, 2, 4, 4, 3))
    assert replayed == [3, 1, 1]
    for mine, theirs in zip(found, passes(model, Steps(False, model.dtype), (2, 2, 2, 3, 3, 2, 4, 4, 3)), strict=True):
        assert mine is not None
        assert theirs is not None
        assert np.array_equal(mine.argmax, theirs.argmax)


def test_a_recording_that_fails_leaves_eager_passes_and_a_reason(model: Model) -> None:
    def record(run: Run) -> Run:
        raise RuntimeError("out of luck\nand more")

    steps = Steps(False, model.dtype, record)
    assert steps.name == "recorded"
    assert all(each is not None for each in passes(model, steps, (2, 2, 2)))
    assert steps.name == "eager (recording failed: out of luck)"


def test_the_backend_says_why_it_does_not_record() -> None:
    from dgemma.hub import locate

    folder = locate("demo", offline=True).folder
    backend = load_backend("cuda", folder, BackendOptions(device="cpu"))
    assert backend.kernels["step"] == "eager (no CUDA device)"

"""Passes as the device runs them: fill the buffers, run on them, read one small result.

`Step.run` looks at nothing on the device and copies nothing from the host, so that it can be recorded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import numpy as np
import torch
from torch import Tensor

from dgemma.backend import Prediction
from dgemma.batch import Batch
from dgemma_cuda.inputs import Form, Inputs, context
from dgemma_cuda.model import Model, hidden_states
from dgemma_cuda.self_conditioning import Soft
from dgemma_cuda.vocab import Draws, Picks

Run = Callable[[], None]
Recorder = Callable[[Run], Run]
_KEPT = 4
_MOST_ROWS = 2048


class Step:
    """One pass of a fixed form; `picked` [5, R] holds what the host reads, `inputs.signal` what the next step reads."""

    def __init__(self, model: Model, form: Form, sparse: bool, signal_dtype: torch.dtype) -> None:
        self.inputs = Inputs(form, model.config, model.device, model.dtype)
        self.picked = torch.zeros(5, form.predicted, dtype=torch.int32, device=model.device)
        self.replay: Run | None = None
        self._model, self._sparse, self._signal_dtype = model, sparse, signal_dtype
        self._soft: Soft | None = None

    def fill(self, batch: Batch) -> None:
        """Take over a batch of this form, making room in its caches."""
        for segment in sorted(batch.segments, key=lambda each: each.canvas):
            context(segment).reserve(segment.end)
        self.inputs.fill(batch)

    def run(self) -> None:
        """Compute everything on the device."""
        self.predict(hidden_states(self._model, self.inputs))

    def predict(self, hidden: Tensor) -> None:
        """Picks and signals from the states [N, H] of all rows."""
        if not self.inputs.form.predicted:
            return
        picks, soft, wide = self._head(hidden[self.inputs.predicted])
        numbers = (picks.entropy.view(torch.int32), picks.margin.view(torch.int32))
        self.picked.copy_(torch.stack([picks.sampled, picks.argmax, *numbers, wide]))
        self.inputs.signal.copy_(soft * self._model.embed_scale)

    def read(self, batch: Batch) -> Prediction:
        """The one synchronisation of a pass; rows of a sparse signal that turned out too wide are finished here."""
        sampled, argmax, entropy, margin, wide = self.picked.cpu().numpy()
        if wide.any() and self._soft is not None:
            rows = torch.from_numpy(np.flatnonzero(wide) - (len(wide) - self.inputs.form.canvas_rows))
            rows = rows.to(self.picked.device)
            self.inputs.signal[rows] = self._soft.full(rows) * self._model.embed_scale
        for segment in batch.canvases:
            context(segment).signal = self.inputs.signal[self.inputs.signal_rows(segment)].clone()
        if self.replay is None:
            self._soft = None
        return Prediction(sampled, argmax, entropy.view(np.float32), margin.view(np.float32))

    def _head(self, x: Tensor) -> tuple[Picks, Tensor, Tensor]:
        """Picks, unscaled soft embeddings, and which predicted rows (int32) are too wide for a sparse signal."""
        inputs, model, cap = self.inputs, self._model, self._model.config.final_logit_softcapping
        wide = torch.zeros_like(inputs.predicted)
        first = len(x) - inputs.form.canvas_rows
        draws = Draws(inputs.temperatures, inputs.uniforms, inputs.greedy != 0)
        arguments = (model.embed_tokens, x, cap, draws, first, self._signal_dtype, self._sparse)
        if model.kernels.unfinished_head is None:
            return *model.kernels.head(*arguments), wide
        picks, self._soft = model.kernels.unfinished_head(*arguments)
        wide[first:] = self._soft.wide
        return picks, self._soft.mixture, wide


class Steps:
    """Runs passes. The second one of a form is recorded, and from then on replayed; a few forms are kept.

    The first compiles the kernels. Prompts are long and rarely alike in form, so they are not worth a recording.
    """

    def __init__(
        self, sparse: bool, signal_dtype: torch.dtype, record: Recorder | None = None, why_not: str = ""
    ) -> None:
        self._sparse, self._signal_dtype = sparse, signal_dtype
        self.name = "recorded" if record else f"eager ({why_not})"
        self._record = record
        self._kept: dict[Form, Step] = {}

    def run(self, model: Model, batch: Batch) -> Prediction | None:
        """One pass over `batch`; lengths of contexts that encode move on."""
        form = Form.of(batch)
        step = self._kept.pop(form, None)
        met, step = step is not None, step or self.eager(model, form)
        step.fill(batch)
        if self._record and form.predicted and form.rows <= _MOST_ROWS:
            self._keep(form, step)
        if met and step.replay is None:
            self._try_to_record(step)
        (step.replay or step.run)()
        advance(batch)
        return step.read(batch) if form.predicted else None

    def eager(self, model: Model, form: Form) -> Step:
        """A fresh step that is not kept."""
        return Step(model, form, self._sparse, self._signal_dtype)

    def without_recording(self, why_not: str) -> Steps:
        """The same, eager."""
        return Steps(self._sparse, self._signal_dtype, None, why_not)

    def _keep(self, form: Form, step: Step) -> None:
        while len(self._kept) >= _KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[form] = step

    def _try_to_record(self, step: Step) -> None:
        """Recording needs memory of its own and a driver that allows it; without, everything stays eager."""
        try:
            step.replay = cast(Recorder, self._record)(step.run)
        except RuntimeError as error:
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            self.name, self._record = f"eager (recording failed: {reason})", None
            self._kept.clear()


def advance(batch: Batch) -> None:
    """What was encoded counts."""
    for segment in batch.encoded:
        context(segment).length = segment.end

"""`--kernels reference`: a whole model on the naive twins alone gives what the chosen kernels give."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dgemma.backend import BackendOptions, DenoiseJob, EncodeJob, load_backend
from tests.parity.support import LIBRARY, TOLERANCE, canvas, gap, open_cpu, prompt, uniforms
from tests.parity.tiny import CANVAS


def test_the_naive_twins_serve_a_whole_model(name: str, tiny_folder: Path) -> None:
    pytest.importorskip(LIBRARY.get(name, "torch"))
    options = BackendOptions(device="cpu", dtype="float32", kernels="reference")
    naive = load_backend(name, tiny_folder, options)
    assert {naive.kernels[part] for part in ("norm", "attention", "moe", "vocab", "self_conditioning")} == {"naive"}
    mine, theirs = naive.open(), (chosen := open_cpu(name, tiny_folder)).open()
    for seed in range(3):
        commit = EncodeJob(mine, prompt(30, seed), "all", 0.7, uniforms(30, seed))
        for step in range(2):
            job = DenoiseJob(mine, canvas(seed + step), 0.6, uniforms(CANVAS, seed))
            jobs = [commit, job] if step == 0 else [job]
            found = naive.forward(jobs)
            expected = chosen.forward([_of(each, theirs) for each in jobs])
            for ours, other in zip(found, expected, strict=True):
                assert ours is not None
                assert other is not None
                assert np.array_equal(ours.argmax, other.argmax)
                assert np.array_equal(ours.sampled, other.sampled)
                assert gap(ours.entropy, other.entropy) <= TOLERANCE
        mine.start_canvas()
        theirs.start_canvas()


def _of(job: EncodeJob | DenoiseJob, context: object) -> EncodeJob | DenoiseJob:
    return replace(job, context=context)  # type: ignore[arg-type]

"""The demo model in the formats of other tools: converted with the weights packed, it answers as before."""

from __future__ import annotations

from pathlib import Path

import pytest

import dgemma
from dgemma_convert import Options, convert

pytest.importorskip("compressed_tensors")
from benchmarks import published

DEMO = Path(dgemma.__file__).parent / "demo"
# One of each layout; the benchmark of accuracy runs them all.
CASES = ("modelopt NVFP4", "compressed NVFP4", "compressed int8 g32", "GGUF Q8_0", "GGUF MXFP4")
ANSWERS = {"reverse planet": "tenalp", "json Ana 31 Rome": '{"name": "Ana", "age": 31, "city": "Rome"}'}


@pytest.fixture(params=CASES, scope="module")
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model, written in a format and converted."""
    work = tmp_path_factory.mktemp("published")
    source = published.MAKERS[request.param](DEMO, work / "source")
    convert(source, work / "out", Options(), verify=True)
    return work / "out"


@pytest.mark.parametrize("backend", ["mlx", "cuda"])
def test_answers(folder: Path, backend: str) -> None:
    prompts = [[{"role": "user", "content": prompt}] for prompt in ANSWERS]
    with dgemma.load(str(folder), backend, device="cpu", dtype="float32") as model:
        answers = model.generate_batch(prompts, seed=0, max_tokens=64)
    assert [answer.text for answer in answers] == list(ANSWERS.values())

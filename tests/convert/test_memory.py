"""A conversion holds some rows of a tensor at a time, never a whole one."""

from __future__ import annotations

import json
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dgemma.config import ModelConfig
from dgemma.names import expected_tensors
from tests.convert import models

_CODE = """
import json, re, sys
from pathlib import Path
import gguf, dgemma_convert
from dgemma_convert import Options, conversion, convert, verification
conversion.RUN = verification.RUN = 1 << 18


def peak():  # getrusage would count what the parent had in memory
    return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])


source, warm, target, options = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4])
convert(warm, Path(f"{target}.warm"), Options(**options), verify=True)
before = peak()
report = convert(source, target, Options(**options))
print(json.dumps([peak() - before, report["totals"]["labels"]]))
"""
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="peak memory as Linux tells it")
LARGE = models.config(
    num_hidden_layers=1,
    layer_types=["full_attention"],
    hidden_size=1024,
    num_experts=128,
    moe_intermediate_size=256,
)
STACK = "model.decoder.layers.0.experts.gate_up_proj"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with one layer, all zeros, its file a hole."""
    folder = models.hub(tmp_path_factory.mktemp("large") / "source")
    header, place = {}, 0
    for name, shape in expected_tensors(ModelConfig.from_dict(LARGE)).items():
        stop = place + 4 * math.prod(shape)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [place, stop]}
        place = stop
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text)
    os.truncate(folder / "model.safetensors", 8 + len(text) + place)
    (folder / "config.json").write_text(json.dumps(LARGE))
    return folder


@pytest.mark.parametrize(("options", "label"), [({}, "exact"), ({"bits": 4, "recipe": "uniform"}, "requantized")])
def test_the_largest_tensor_is_never_held(source: Path, tmp_path: Path, options: dict[str, object], label: str) -> None:
    largest = 4 * math.prod(expected_tensors(ModelConfig.from_dict(LARGE))[STACK])
    assert largest > 250_000_000
    small = models.hub(tmp_path / "small")
    arguments = [str(source), str(small), str(tmp_path / "out"), json.dumps(options)]
    paths = {"PYTHONPATH": os.pathsep.join(str(Path(each).resolve()) for each in sys.path if each)}
    done = subprocess.run(
        [sys.executable, "-c", _CODE, *arguments], capture_output=True, env=os.environ | paths, check=True, timeout=300
    )
    grown, labels = json.loads(done.stdout)
    assert labels[label]
    assert grown < largest / 4
    shutil.rmtree(tmp_path / "out")

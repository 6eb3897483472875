"""Every option that takes one of several words names them where it is given another."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dgemma.cli import app
from tests.cli.test_process import ENVIRONMENT, START

GENERATE, RUN, ROOFLINE = ("generate", "hi"), ("bench", "run"), ("bench", "roofline")
CONVERT = ("convert", "FOLDER", "/dev/null/made")
WORDS = [
    (GENERATE, "--show", ("auto", "live", "blocks", "none")),
    (("chat",), "--show", ("auto", "live", "blocks", "none")),
    (GENERATE, "--mode", ("diffusion", "ar", "verified", "hybrid")),
    (GENERATE, "--backend", ("mlx", "cuda")),
    (GENERATE, "--device", ("auto", "cpu", "gpu")),
    (GENERATE, "--dtype", ("float32", "float16", "bfloat16")),
    (GENERATE, "--quality", ("fast", "balanced", "reference")),
    (GENERATE, "--kernels", ("auto", "reference")),
    (GENERATE, "--self-conditioning", ("auto", "exact", "sparse")),
    ((*GENERATE, "--mode", "verified"), "--draft-steps", ("number", "auto")),
    (RUN, "--profile", ("chat", "code", "math", "json", "long", "fixed", "demo")),
    (RUN, "--engine", ("dgemma", "transformers", "mlx-vlm")),
    (RUN, "--mode", ("adaptive", "fixed")),
    (RUN, "--format", ("table", "md", "csv", "json", "jsonl")),
    (RUN, "-o", (".jsonl", ".json", ".csv", ".md")),
    (ROOFLINE, "--machine", ("Choose of: ",)),
    (ROOFLINE, "--weights", ("bf16", "fp8", "nvfp4", "int4-g32", "mlx-8bit", "mlx-4bit")),
    (CONVERT, "--to", ("hub", "mlx")),
    (CONVERT, "--mode", ("affine", "mxfp4", "nvfp4", "mxfp8")),
    (CONVERT, "--recipe", ("default", "all-8bit", "experts-only", "mixed-4-6", "uniform")),
    (CONVERT, "--dtype", ("bf16", "fp16", "fp32")),
    (("completion",), "", ("bash", "zsh", "fish", "powershell")),
]


TEXTS = [
    (["generate", "TEXT"], "PROMPT"),
    (["generate", "-p", "TEXT"], "--prompt"),
    (["generate", "hi", "-s", "TEXT"], "--system"),
    (["generate", "hi", "--stop", "x", "--stop", "TEXT"], "--stop"),
    (["chat", "-s", "TEXT"], "--system"),
    (["chat", "--stop", "TEXT"], "--stop"),
    (["fill", "FILE", "-i", "TEXT"], "--instruction"),
    (["fill", "FILE", "-s", "TEXT"], "--system"),
    (["edit", "FILE", "--lines", "1", "-i", "TEXT"], "--instruction"),
    (["generate", "hi", "--backend", "TEXT"], "--backend"),
]


@pytest.mark.parametrize("locale", ["C.UTF-8", "C"])
@pytest.mark.parametrize(("words", "name"), TEXTS)
def test_texts_are_utf8(tmp_path: Path, words: list[str], name: str, locale: str) -> None:
    (tmp_path / "text").write_text("<fill:1>")
    given = [{"TEXT": b"ok \xff\xfe", "FILE": bytes(tmp_path / "text")}.get(word, word.encode()) for word in words]
    environment = ENVIRONMENT | {"LC_ALL": locale, "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", START, *given], env=environment, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (2, b"", 1), done.stderr
    assert f"{name} is not UTF-8 text" in done.stderr.decode()


def test_names_of_files_may_be_any_bytes(tmp_path: Path) -> None:
    path = bytes(tmp_path) + b"/\xff"
    with Path(os.fsdecode(path)).open("w") as file:
        file.write("no gap")
    done = subprocess.run([sys.executable, "-c", START, "fill", path], env=ENVIRONMENT, capture_output=True)
    assert done.returncode == 2 and b"nothing to fill" in done.stderr


@pytest.mark.parametrize(("command", "option", "words"), WORDS, ids=lambda value: str(value)[:40])
@pytest.mark.parametrize("wrong", ["live=raw", ""])
def test_the_legal_values_are_named(
    folder: Path, command: tuple[str, ...], option: str, words: tuple[str, ...], wrong: str
) -> None:
    given = [str(folder) if word == "FOLDER" else word for word in command]
    result = CliRunner().invoke(app, [*given, *([option] if option else []), wrong])
    assert result.exit_code == 2 and "Traceback" not in result.stderr, result.output
    text = " ".join(result.stderr.split())
    assert all(word in text for word in words), text

"""Proportions: small files, small functions."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("common/dgemma", "dgemma_mlx", "dgemma_cuda", "convert/dgemma_convert")
FILES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))


def functions(path: Path) -> Iterator[tuple[str, int]]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{path.name}:{node.lineno} {node.name}", (node.end_lineno or node.lineno) - node.lineno + 1


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_file(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400
    limit = 120 if "kernels" in path.parts else 60
    assert [where for where, lines in functions(path) if lines > limit] == []


def test_medians() -> None:
    lengths = [len(path.read_text(encoding="utf-8").splitlines()) for path in FILES]
    assert statistics.median(lengths) <= 150
    assert statistics.median(lines for path in FILES for _, lines in functions(path)) <= 10


def test_no_catch_all_modules() -> None:
    assert not [path for path in FILES if path.stem in ("utils", "helpers", "misc")]

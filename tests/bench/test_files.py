"""`dgemma bench compare`, `report`, `submit` and `roofline` on files of rows."""

import json
from pathlib import Path

import pytest

from dgemma.bench.row import Row, read_rows
from tests.bench.conftest import Run
from tests.bench.rows import make_row, make_sample


def put(path: Path, *rows: Row) -> Path:
    path.write_text("".join(row.dump() for row in rows))
    return path


def samples(factor: float) -> list:
    return [make_sample(p, r, factor * (2 + 0.01 * r), step_ms=(50 * factor,)) for p in "ab" for r in range(5)]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    ours = make_row(samples(1.0), components_ms={"backend": 40.0, "rules": 10.0})
    peer = make_row(samples(1.5), engine="transformers", backend="torch", label="smoke")
    random = make_row(samples(1.0), weights="random", profile="fixed", mode="fixed", steps=16)
    return put(tmp_path / "a.jsonl", ours, random), put(tmp_path / "b.jsonl", peer)


def test_compare(bench: Run, files: tuple[Path, Path]) -> None:
    result = bench("compare", *files)
    assert result.exit_code == 0 and "B is worse" in result.stdout and "0.667" in result.stdout
    same = bench("compare", files[0], files[0])
    assert "no significant difference" in same.stdout and "better" not in same.stdout


def test_compare_engines_of_one_file(bench: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    both = put(tmp_path / "both.jsonl", *read_rows(files[0]), *read_rows(files[1]))
    assert "B is worse" in bench("compare", f"{both}::dgemma", f"{both}::transformers").stdout
    wrong = bench("compare", f"{both}::vllm", both)
    assert wrong.exit_code == 2 and "It has: dgemma (cuda), transformers (torch)" in wrong.stderr
    nothing = bench("compare", files[1], put(tmp_path / "c.jsonl", make_row(profile="code")))
    assert nothing.exit_code == 2 and "share no measurement" in nothing.stderr


def test_report(bench: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    result = bench("report", *files, "-o", tmp_path / "out.md")
    assert result.exit_code == 0, result.stderr
    text = (tmp_path / "out.md").read_text()
    plots = sorted(path.name for path in tmp_path.glob("*.svg"))
    assert plots == [f"out-{name}.svg" for name in ("components", "machines", "quality", "steps")]
    assert all(f"({name})" in text for name in plots) and "dgemma is better" in text
    assert "random weights" in text and "smoke" in text


def test_the_same_rows_make_the_same_report(bench: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    before = {}
    for _ in range(2):
        bench("report", files[1], "-o", tmp_path / "out.md")
        found = {path.name: path.read_bytes() for path in tmp_path.glob("out*")}
        assert not before or before == found
        before = found


def test_submit_writes_a_file_without_private_things(bench: Run, files: tuple[Path, Path], tmp_path: Path) -> None:
    output = tmp_path / "share.jsonl"
    result = bench("submit", *files, "-o", output)
    assert result.exit_code == 0 and "Nothing was sent" in result.stderr
    shared = read_rows(output)
    assert [row.label for row in shared] == ["measured", "measured"] and "/home/me" not in output.read_text()
    assert bench("submit", files[0], "-o", output).exit_code == 2
    smoke = bench("submit", files[1], "-o", tmp_path / "other.jsonl")
    assert smoke.exit_code == 2 and "not for publication" in smoke.stderr


def test_roofline(bench: Run, files: tuple[Path, Path], folder: Path) -> None:
    result = bench("roofline", "--machine", "h100", "--weights", "fp8", "--json", "--row", files[0])
    found = json.loads(result.stdout)
    assert found["total_gigaflop"] == pytest.approx(2530, rel=0.01) and found["floor_ms"] == pytest.approx(
        8.68, rel=0.01
    )
    assert found["reached"][0]["share"] == pytest.approx(found["floor_ms"] / 50)
    text = bench("roofline", "--machine", "M4 Max", "--weights", "mlx-4bit").stdout
    assert "85% of 546 GB/s" in text and "TFLOP a step" in text
    stored = json.loads(bench("roofline", "-m", folder, "--machine", "h200", "--json").stdout)
    assert stored["weights"] == "f32" and stored["canvas"] == 16
    assert bench("roofline", "--machine", "abacus").exit_code == 2

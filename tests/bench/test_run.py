"""`dgemma bench run`: rows, sweeps, skips, interrupts, busy machines; on a fake engine and on a scripted backend."""

import csv
import io
import json
from pathlib import Path

import pytest

from dgemma.backend import REGISTRY
from dgemma.bench import engines
from dgemma.bench.row import Row, columns, read_rows
from dgemma.bench.schema import schema
from scripted_backend import ENTRY, NAME
from tests.bench.conftest import Run


def rows(bench: Run, *arguments: object) -> list[Row]:
    result = bench("run", "-q", "--format", "jsonl", *arguments)
    assert result.exit_code == 0, result.stderr
    return [Row.from_dict(json.loads(line)) for line in result.stdout.splitlines()]


def test_a_standard_row(bench: Run) -> None:
    [row] = rows(bench, "--engine", "fake", "--profile", "math")
    assert row.standard and row.label == "smoke" and row.weights == "trained" and not row.busy
    assert (row.engine, row.profile, row.mode, row.repetitions, row.prompts) == ("fake", "math", "adaptive", 5, 12)
    assert len(row.samples) == 60 and row.e2e_tok_s == pytest.approx(20) and row.quality == 1
    assert row.peak_memory_bytes == 1234 and row.components_ms == {"backend": 40.0, "rules": 10.0}
    assert {"chip", "cores", "versions", "commit", "dirty", "command"} <= set(row.environment)
    assert row.warmup_s is not None and row.load_s is not None


@pytest.mark.parametrize("change", [("-r", 2), ("-n", 64), ("--prompts", 3), ("--steps", 8), ("--no-warm-up",)])
def test_anything_changed_is_custom(bench: Run, change: tuple[object, ...]) -> None:
    [row] = rows(bench, "--engine", "fake", *change)
    assert not row.standard


def test_sweeps_visit_every_combination(bench: Run) -> None:
    found = rows(bench, "--engine", "fake", "-r", 1, "--steps", "4,8", "--canvas", "16,32", "--batch", "1,4")
    assert [(row.batch, row.canvas_length, row.steps) for row in found] == [
        (batch, canvas, steps) for batch in (1, 4) for canvas in (16, 32) for steps in (4, 8)
    ]
    assert {sample.sequences for row in found if row.batch == 4 for sample in row.samples} == {4}
    [fixed] = rows(bench, "--engine", "fake", "-r", 1, "--profile", "fixed")
    assert (fixed.mode, fixed.steps, fixed.max_tokens) == ("fixed", 16, 1024)


def test_random_weights_carry_no_speed(bench: Run) -> None:
    [row] = rows(bench, "--engine", "fake:random", "-r", 1)
    assert row.weights == "random" and row.step_ms_p50 == 50
    assert row.e2e_tok_s is None and row.tokens_per_forward is None and row.quality is None


def test_formats(bench: Run, tmp_path: Path) -> None:
    result = bench("run", "-q", "--engine", "fake", "-r", 1, "--format", "csv", "-o", tmp_path / "rows.json")
    table = list(csv.reader(io.StringIO(result.stdout)))
    assert table[0] == columns() and len(table) == 2
    assert len(read_rows(tmp_path / "rows.json")) == 1
    assert "| fake | chat adaptive |" in bench("run", "-q", "--engine", "fake", "-r", 1, "--format", "md").stdout
    assert "e2e tok/s" in bench("run", "-q", "--engine", "fake", "-r", 1).stdout


def test_rows_are_appended(bench: Run, tmp_path: Path) -> None:
    for _ in range(2):
        bench("run", "-q", "--engine", "fake", "-r", 1, "-o", tmp_path / "rows.jsonl")
    assert len(read_rows(tmp_path / "rows.jsonl")) == 2


def test_an_interrupt_keeps_finished_rows(bench: Run, tmp_path: Path) -> None:
    output = tmp_path / "rows.jsonl"
    sweep = ("--steps", "4,8,12,16", "-r", 1, "--prompts", 8)
    result = bench("run", "--engine", "fake:interrupt", *sweep, "--format", "md", "-o", output)
    assert result.exit_code == 130
    assert [row.steps for row in read_rows(output)] == [4, 8]
    assert "2 finished rows are kept" in result.stderr and result.stdout.count("| fake |") == 2


def test_a_busy_machine_is_named(bench: Run) -> None:
    result = bench("run", "-q", "--engine", "fake:erratic", "--prompts", 1)
    assert "Warning" in result.stderr and "the machine does something else" in result.stderr
    assert "busy machine" in result.stdout


def test_an_absent_engine_is_skipped(bench: Run) -> None:
    result = bench("run", "-q", "--engine", "fake", "--engine", "fake:missing", "-r", 1, "--format", "md")
    assert result.exit_code == 0 and result.stdout.count("| fake |") == 1
    assert "Skipped fake:missing: fakelib is not installed. pip install fakelib" in result.stderr
    alone = bench("run", "--engine", "fake:missing")
    assert alone.exit_code == 4 and "No engine is left" in alone.stderr


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ("no_such_library.engine:open_engine", "no_such_library is not installed. pip install ghost"),
        ("benchmarks.no_such_file:open_engine", "ghost is part of the repository. Run from a checkout."),
    ],
)
def test_a_library_that_is_not_installed(monkeypatch: pytest.MonkeyPatch, entry: str, words: str) -> None:
    monkeypatch.setitem(engines.REGISTRY, "ghost", entry)
    with pytest.raises(engines.EngineMissingError) as caught:
        engines.open_engine(engines.Target("ghost", None, "demo"))
    assert caught.value.line() == words


def test_engines_take_turns_in_processes_of_their_own(bench: Run) -> None:
    arguments = ("run", "-q", "--engine", "fake:chatty", "--engine", "fake:random", "-r", 2, "--format", "jsonl")
    result = bench(*arguments)
    found = [Row.from_dict(json.loads(line)) for line in result.stdout.splitlines()]
    assert [row.weights for row in found] == ["trained", "random"]
    assert all(len(row.samples) == 16 and row.peak_memory_bytes == 1234 for row in found)


def test_a_crashing_engine_leaves_the_others(bench: Run) -> None:
    result = bench("run", "-q", "--engine", "fake", "--engine", "fake:crash", "-r", 1, "--format", "md")
    assert result.exit_code == 0 and result.stdout.count("| fake |") == 1
    assert "fake:crash ended with status 7: Segmentation fault, say" in result.stderr


def test_what_an_engine_cannot_is_a_note(bench: Run) -> None:
    result = bench("run", "-q", "--engine", "fake:unbatched", "-r", 1, "--batch", "1,2", "--format", "md")
    assert result.exit_code == 0 and result.stdout.count("| fake |") == 1
    assert "Skipped fake:unbatched at this point: One prompt at a time." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--engine", "abacus"), "No engine called"),
        (("--engine", "fake", "--profile", "poetry"), "no profile"),
        (("--engine", "fake", "--steps", "4;8"), "commas"),
        (("--engine", "fake", "--mode", "fixed"), "number of steps"),
        (("--engine", "server"), "address"),
    ],
)
def test_usage_errors(bench: Run, arguments: tuple[str, ...], words: str) -> None:
    result = bench("run", *arguments)
    assert result.exit_code == 2 and words in result.stderr


@pytest.fixture
def scripted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    (folder / "script.txt").write_text("The answer is 6.")
    return folder


def test_our_own_engine(bench: Run, scripted: Path) -> None:
    validator = pytest.importorskip("jsonschema").Draft202012Validator(schema())
    arguments = ("-m", scripted, "--engine", f"dgemma:{NAME}", "--prompts", 1, "-r", 2)
    [row] = rows(bench, *arguments, "--profile", "math")
    assert row.backend == NAME and row.device == "cpu" and row.weight_format == "f32" and row.canvas_length == 16
    assert row.quality == 1 and row.samples[0].tokens == 16 and row.steps_per_canvas_max == 2
    assert row.model == scripted.name and str(scripted.parent) not in row.dump()
    assert row.model_hash and row.copy_gb_s and row.bandwidth_share and set(row.components_ms) == {"backend", "rules"}
    assert validator.is_valid(json.loads(row.dump()))


def test_fixed_mode_ignores_every_stop(bench: Run, scripted: Path) -> None:
    limits = ("--mode", "fixed", "--steps", 3, "-n", 32, "--prompt-tokens", "40", "--prompts", 1, "-r", 1)
    [row] = rows(bench, "-m", scripted, "--engine", f"dgemma:{NAME}", *limits)
    [sample] = row.samples
    assert (sample.tokens, sample.prompt_tokens, sample.steps_per_canvas) == (32, 40, (3, 3))
    assert sample.commit_passes == 1 and len(sample.step_ms) == 5 and row.tokens_per_pass == pytest.approx(32 / 7)


def test_a_batch_of_our_own(bench: Run, scripted: Path) -> None:
    [row] = rows(bench, "-m", scripted, "--engine", f"dgemma:{NAME}", "--batch", "4", "--prompts", 4, "-r", 1)
    [sample] = row.samples
    assert sample.sequences == 4 and sample.tokens == 64 and len(sample.block_s) == 8

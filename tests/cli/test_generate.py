"""`dgemma generate` in this process, on a scripted backend."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma.backend import REGISTRY
from dgemma.cli import app
from dgemma.errors import OutOfMemoryError
from scripted_backend import ENTRY, NAME, Scripted

Run = Callable[..., Result]
STATS = {
    "prompt_tokens",
    "completion_tokens",
    "canvases",
    "denoising_steps",
    "steps_per_canvas",
    "encoder_passes",
    "tokens_per_forward",
    "prefill_s",
    "time_to_first_block_s",
    "decode_s",
    "total_s",
    "decode_tok_s",
    "e2e_tok_s",
    "peak_memory_bytes",
}


@pytest.fixture
def run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)

    def invoke(*arguments: str, script: str = "Hello.", stdin: str = "") -> Result:
        (folder / "script.txt").write_text(script, encoding="utf-8")
        return CliRunner().invoke(app, ["generate", "-m", str(folder), "--backend", NAME, *arguments], input=stdin)

    return invoke


@pytest.mark.parametrize("show", ["auto", "blocks", "none"])
@pytest.mark.parametrize("text", ["Hello.", "", "two\nlines\n", "a€b " * 12])
def test_only_the_answer_on_stdout(run: Run, text: str, show: str) -> None:
    result = run("hi", "--show", show, script=text)
    assert (result.exit_code, result.stdout, result.stderr) == (0, text + "\n", "")


def test_reasoning_and_calls_on_stderr(run: Run) -> None:
    result = run("hi", script="<|channel>thought\nHm, yes.<channel|>Yes.<|tool_call>call:f{x:1}<tool_call|>")
    assert result.stdout == "Yes.\n"
    assert result.stderr == 'Hm, yes.\ntool call: {"name": "f", "arguments": {"x": 1}}\n'
    assert run("hi", "-q", script="<|channel>thought\nHm.<channel|>Yes.").stderr == ""


def test_json(run: Run) -> None:
    result = run("hi", "--json", "--seed", "5", script="<|channel>thought\nHm.<channel|>Yes.")
    found = json.loads(result.stdout)
    assert result.stdout.count("\n") == 1 and result.stderr == ""
    assert found["schema"] == 1 and found["text"] == "Yes." and found["reasoning"] == "Hm."
    assert found["finish_reason"] == "stop" and found["seed"] == 5 and found["backend"] == NAME
    assert found["tool_calls"] == [] and found["revision"] is None and found["device"] == "cpu"
    assert len(found["tokens"]) == found["stats"]["completion_tokens"]
    assert set(found["stats"]) >= STATS


def test_jsonl(run: Run) -> None:
    lines = [json.loads(line) for line in run("hi", "--jsonl", script="a€b " * 12).stdout.splitlines()]
    kinds = [line["event"] for line in lines]
    assert kinds[0] == "draft" and kinds[-1] == "finish" and set(kinds) == {"draft", "block", "finish"}
    assert all(line["schema"] == 1 for line in lines) and lines[-1]["text"] == "a€b " * 12
    assert len(lines[0]["tokens"]) == 16


@pytest.mark.parametrize("mode", ["ar", "verified", "hybrid"])
def test_modes_give_the_same_answer(run: Run, mode: str) -> None:
    text = "a€b " * 12
    assert run("hi", "--mode", mode, script=text).stdout == text + "\n"
    lines = [json.loads(line) for line in run("hi", "--mode", mode, "--jsonl", script=text).stdout.splitlines()]
    events = [line for line in lines if line["event"] == "block"]
    assert "".join(event["text"] for event in events) == text and lines[-1]["text"] == text
    assert lines[-1]["stats"]["forwards"] > 0
    if mode == "ar":
        assert {len(event["tokens"]) for event in events} == {1}


def test_a_warm_start_is_read(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "start.txt").write_text("Hello, world")
    assert run("hi", "--warm-start", str(tmp_path / "start.txt")).stdout == "Hello.\n"
    (tmp_path / "empty.txt").write_text("")
    assert "is empty" in run("hi", "--warm-start", str(tmp_path / "empty.txt")).stderr


def test_same_seed_same_json(run: Run) -> None:
    first, second = (json.loads(run("hi", "--json", "--seed", "3").stdout) for _ in range(2))
    assert first["tokens"] == second["tokens"]


def test_stats_line(run: Run) -> None:
    result = run("hi", "--stats", "--seed", "9")
    assert result.stdout == "Hello.\n" and "6 tokens" in result.stderr and "seed 9" in result.stderr


def test_budget_is_told(run: Run) -> None:
    result = run("hi", "-n", "20", script="x" * 100)
    assert result.stdout == "x" * 20 + "\n" and "Stopped at 20 tokens" in result.stderr


def test_step_cap_warns(run: Run, folder: Path) -> None:
    (folder / "entropy.txt").write_text("3.0")
    assert "1 of 1 blocks reached the step cap" in run("hi", "--steps", "2").stderr


def prompt_seen(run: Run, monkeypatch: pytest.MonkeyPatch, *arguments: str, stdin: str = "") -> str:
    seen: list[str] = []
    monkeypatch.setattr("dgemma.api.Model.prompt_text", lambda self, text, settings: seen.append(text) or "<bos>")
    assert run(*arguments, stdin=stdin).exit_code == 0
    return seen[0]


@pytest.mark.parametrize(
    ("arguments", "stdin", "expected"),
    [
        (["hi"], "", "hi"),
        (["-p", "hi"], "", "hi"),
        (["-"], "from stdin\n", "from stdin\n"),
        ([], "from stdin\n", "from stdin\n"),
        (["-p", "-"], "from stdin", "from stdin"),
        (["explain"], "some code\n", "some code\n\nexplain"),
        (["explain", "-f", "FILE"], "piped\n", "in the file\n\npiped\n\nexplain"),
    ],
)
def test_prompt_sources(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: list[str], stdin: str, expected: str
) -> None:
    (tmp_path / "FILE").write_text("in the file\n")
    monkeypatch.chdir(tmp_path)
    assert prompt_seen(run, monkeypatch, *arguments, stdin=stdin) == expected


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "no prompt"),
        (["hi", "-p", "there"], 2, "twice"),
        (["hi", "-f", "/nowhere"], 2, "/nowhere cannot be read"),
        (["hi", "--json", "--jsonl"], 2, "exclude"),
        (["hi", "--json", "--show", "none"], 2, "--show none"),
        (["hi", "--temp-range", "1"], 2, "MIN,MAX"),
        (["hi", "--temp-range", "0.9,0.1"], 2, "Temperatures"),
        (["hi", "--temp", "1", "--temp-range", "0.1,0.9"], 2, "exclude"),
        (["hi", "--raw", "-s", "x"], 2, "raw"),
        (["hi", "--backend", "tpu"], 2, "Unknown backend"),
        (["hi", "-m", "./nowhere"], 3, "no folder"),
        (["hi", "-m", "someone/missing", "--offline"], 3, "hf download"),
        (["hi", "--draft-steps", "2"], 2, "draft_steps means nothing in mode diffusion"),
        (["hi", "--mode", "ar", "--steps", "2"], 2, "steps means nothing in mode ar"),
        (["hi", "--mode", "verified", "--draft-steps", "few"], 2, "a number or auto"),
        (["hi", "--warm-start", "/nowhere"], 2, "/nowhere cannot be read"),
        (["hi", "--show", "live"], 2, "--show live"),
    ],
)
def test_failures_are_one_line(run: Run, arguments: list[str], code: int, words: str) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (code, "") and words in result.stderr
    assert result.stderr.count("\n") == 1 and "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("flag", "value", "word"),
    [("--top-p", "0.9", "--top-p"), ("--top-k", "1", "--top-k"), ("-n", "0", "-n"), ("--temp", "-1", "temperature")],
)
def test_usage_errors(run: Run, flag: str, value: str, word: str) -> None:
    result = run("hi", flag, value)
    assert result.exit_code == 2 and result.stdout == "" and word in result.stderr


@pytest.mark.parametrize(
    ("error", "code"), [(OutOfMemoryError("Too big."), 5), (MemoryError(), 5), (ValueError("oops"), 1)]
)
@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_runtime_errors(
    run: Run, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, json_flag: list[str]
) -> None:
    def fail(*arguments: object) -> None:
        raise error

    monkeypatch.setattr(Scripted, "forward", fail)
    result = run("hi", *json_flag)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (code, "", 1)
    assert "Traceback" in run("hi", "-v", *json_flag).stderr


def test_damaged_weights_are_reported(run: Run, folder: Path) -> None:
    (folder / "config.json").write_text('{"model_type": "gemma4"}')
    result = run("hi")
    assert result.exit_code == 4 and "'gemma4' is not supported" in result.stderr

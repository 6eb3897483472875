"""`dgemma models`, `doctor` and `completion` in this process, on a Hugging Face cache made by hand."""

import json
import shutil
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from dgemma import aliases, fit
from dgemma.backend import REGISTRY
from dgemma.cli import app
from dgemma.errors import OutOfMemoryError
from dgemma.fastest import Question, fastest
from dgemma.fit import Memory, check_fit, need
from scripted_backend import ENTRY, NAME

REPO, REVISION = "someone/tiny-diffusion", "0123456789abcdef0123456789abcdef01234567"


def run(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(app, list(arguments), input=stdin)


@pytest.fixture(autouse=True)
def cache(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    hub = tmp_path / "hub"
    snapshot = hub / ("models--" + REPO.replace("/", "--")) / "snapshots" / REVISION
    shutil.copytree(folder, snapshot)
    refs = snapshot.parents[1] / "refs"
    refs.mkdir()
    (refs / "main").write_text(REVISION)
    other = hub / "models--someone--other" / "snapshots" / REVISION[::-1]
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "llama"}')
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        monkeypatch.setenv(name, str(hub))
    for module in (
        "huggingface_hub.constants",
        "huggingface_hub.utils._cache_manager",
        "huggingface_hub._snapshot_download",
    ):
        monkeypatch.setattr(f"{module}.HF_HUB_CACHE", str(hub), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(hub))
    monkeypatch.setattr(aliases, "alias_file", lambda: tmp_path / "config" / "aliases.toml")
    monkeypatch.setitem(REGISTRY, NAME, ENTRY)
    return hub


def test_list() -> None:
    lines = run("models", "list").stdout.splitlines()
    assert lines[0].split() == ["NAME", "REVISION", "FORMAT", "SIZE", "NEEDS", "FITS"]
    assert lines[1].split()[:3] == [REPO, REVISION[:8], "float32"] and lines[1].endswith("yes") and len(lines) == 2


def test_list_as_json(cache: Path) -> None:
    found = json.loads(run("models", "list", "--json").stdout)
    assert found["schema"] == 1 and found["cache"] == str(cache)
    assert found["models"][0]["refs"] == ["main"] and found["models"][0]["complete"] and found["models"][0]["needs"] > 0


def test_path_and_show(cache: Path, folder: Path) -> None:
    path = run("models", "path", REPO).stdout.strip()
    assert path == run("models", "path", f"{REPO}@main").stdout.strip() and Path(path).name == REVISION
    shown = run("models", "show", str(folder)).stdout
    assert "canvas        16" in shown and "fits          yes" in shown and "experts       2 of 4" in shown
    assert json.loads(run("models", "show", REPO, "--json").stdout)["revision"] == REVISION
    assert run("models", "path", "someone/missing").exit_code == 3


def test_rm(cache: Path) -> None:
    refused = run("models", "rm", REPO)
    assert refused.exit_code == 2 and "--yes" in refused.stderr
    assert run("models", "rm", "someone/missing", "-y").exit_code == 3
    assert run("models", "rm", "someone/other", "-y").exit_code == 3, "not one of ours"
    done = run("models", "rm", f"{REPO}@main", "-y")
    assert done.exit_code == 0 and "Freed" in done.stderr
    assert "No model" in run("models", "list").stderr


def test_aliases(folder: Path) -> None:
    assert "dgemma:bf16" in run("models", "alias").stdout
    assert run("models", "alias", "mine", str(folder)).exit_code == 0
    assert str(folder) in run("models", "alias", "mine").stdout
    assert run("generate", "hi", "-m", "mine", "--backend", NAME).stdout == "Hello.\n"
    assert run("models", "alias", "mine", "--remove").exit_code == 0
    assert run("models", "alias", "mine").exit_code == 2
    assert run("models", "alias", "mine", "--remove").exit_code == 2
    assert run("models", "alias", "a b", "c").exit_code == 2


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("demo", REPO),
        ("dgemma:4bit", REPO),
        ("dgemma:bf16", "demo"),
        ("", REPO),
        ("a b", REPO),
        ("owner/name", REPO),
        ("./here", REPO),
        (".", REPO),
        ("..", REPO),
        ("~x", REPO),
        ("a@b", REPO),
        ("mine", ""),
        ("mine", "mine"),
        ("mine", "no such model"),
        ("mine", "missing"),
        ("mine", "./missing"),
        ("mine", "/missing"),
        ("mine", "."),
        ("mine", "a/b/c"),
        ("mine", "owner/name@"),
    ],
)
def test_aliases_that_could_not_be_used_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, target: str
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    result = run("models", "alias", name, target)
    assert (result.exit_code, result.stdout, result.stderr.count("\n")) == (2, "", 1), result.stderr
    assert not (tmp_path / "config" / "aliases.toml").exists()


def test_an_alias_stands_for_a_model_wherever_it_is_used(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    for name, target in (("mine", folder.name), ("again", "mine"), ("toy", "demo"), ("four", "dgemma:4bit")):
        assert run("models", "alias", name, target).exit_code == 0
    assert run("models", "alias", "mine", REPO).exit_code == 0, "one's own may be changed"
    monkeypatch.chdir(tmp_path / "config")
    assert run("models", "path", "again").stdout == f"{folder}\n"
    assert run("models", "path", "toy").stdout == run("models", "path", "demo").stdout
    assert aliases.aliases()["four"] == aliases.BUILT_IN["dgemma:4bit"]
    assert run("models", "alias", "toy", "--remove").exit_code == 0 and "toy" not in aliases.aliases()


@pytest.mark.parametrize("line", ['demo = "a/b"', '"dgemma:4bit" = "a/b"', '"a/b" = "c/d"'])
def test_a_shadow_in_the_file_is_named(tmp_path: Path, line: str) -> None:
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "aliases.toml").write_text(line)
    result = run("generate", "hi", "-m", "demo", "-q")
    assert result.exit_code == 2 and "aliases.toml" in result.stderr and result.stderr.count("\n") == 1


def test_aliases_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "plain").write_text("")
    monkeypatch.setattr(aliases, "alias_file", lambda: tmp_path / "plain" / "aliases.toml")
    result = run("models", "alias", "mine", REPO)
    assert result.exit_code in (1, 2) and "plain" in result.stderr and "Unexpected" not in result.stderr


def test_a_damaged_alias_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "config").mkdir()
    for text in ("no toml", "mine = 3"):
        (tmp_path / "config" / "aliases.toml").write_text(text)
        result = run("generate", "hi", "-m", "mine")
        assert result.exit_code == 2 and "aliases.toml" in result.stderr


def test_pull(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    class Planned:
        file_size, will_download = 40, True

    def snapshot_download(repo: str, **options: object) -> object:
        if options.get("dry_run"):
            return [Planned(), Planned()]
        bar = options["tqdm_class"]
        for unit, steps in (("B", (30, 50)), ("it", (1,))):
            with bar(total=80, unit=unit, name="some.name", desc="x") as progress:  # type: ignore[operator]
                for step in steps:
                    progress.update(step)
        return str(folder)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    result = run("models", "pull", "dgemma:4bit")
    assert (result.exit_code, result.stdout) == (0, f"{folder}\n") and "Downloading" in result.stderr
    assert run("models", "pull", "demo").exit_code == 2


def test_pull_offline() -> None:
    assert run("models", "pull", "someone/missing", "--offline").exit_code == 3
    assert run("models", "pull", REPO, "--offline").exit_code == 0


def test_the_memory_check_comes_before_loading(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needed = need(folder, "float32")
    assert needed.total == needed.weights + needed.cache + needed.canvas
    assert need(folder, "bfloat16").weights * 2 == needed.weights <= (folder / "model.safetensors").stat().st_size
    monkeypatch.setattr(fit, "memory", lambda *place: Memory("memory", 10**6, needed.total - 1))
    with pytest.raises(OutOfMemoryError, match=r"needs .* MB in float32, .* MB of memory are free"):
        check_fit(folder, "mlx", "cpu")
    result = run("generate", "hi", "-m", str(folder), "--backend", NAME)
    assert (result.exit_code, result.stdout) == (5, "") and "--dtype bfloat16" in result.stderr
    check_fit(folder, "mlx", "cpu", "bfloat16")


def test_doctor(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgemma.doctor._LIBRARIES", {NAME: (), "cuda": ("no_such_library",)})
    result = run("doctor", "-m", str(folder), "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 0 and found["usable"] and found["schema"] == 1
    assert found["backends"][NAME]["answer"] == "Hello." and not found["backends"]["cuda"]["usable"]
    assert found["machine"]["cores"] and found["cache"]["free"] > 0 and found["machine"]["versions"]["python"]
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    text = run("doctor", "-m", str(folder))
    assert text.exit_code == 0 and "works on cpu" in text.stdout and "no_such_library is not installed" in text.stdout
    assert "hf_secret" not in text.stdout and "a token is set" in text.stdout


def test_doctor_shows_what_was_timed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgemma.doctor._LIBRARIES", {})
    monkeypatch.setattr("dgemma.fastest.choices_file", lambda: tmp_path / "choices.json")
    laps = iter([0.0, 0.5, 0.5, 0.75] * 5)
    question = Question("experts of a shape", "Some Chip", "mlx 0", "0")
    candidates = {"mlx": lambda: 1, "tiles": lambda: 1, "broken": lambda: 1 / 0}
    fastest(question, candidates, lambda a, b: a == b, lambda: next(laps))
    text = run("doctor").stdout
    assert "timed           tiles for experts of a shape on Some Chip (mlx 500.00 ms, tiles 250.00 ms, broken" in text
    [found] = json.loads(run("doctor", "--json").stdout)["timed"]
    assert found["name"] == "tiles" and found["failures"] == {"broken": "ZeroDivisionError: division by zero"}


def test_doctor_fails_where_nothing_works(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dgemma.doctor._LIBRARIES", {NAME: ()})
    result = run("doctor", "-m", "./nowhere")
    assert result.exit_code == 4 and "no backend works" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0 and "_DGEMMA_COMPLETE" in result.stdout and "dgemma" in result.stdout

"""`dgemma models pull` with huggingface_hub's own client, against a hub on this machine."""

import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.hub_server import COMMIT, GATED, PRIVATE, REPO, WEIGHTS, Hub
from tests.cli.test_process import ENVIRONMENT

Pull = Callable[..., "subprocess.CompletedProcess[str]"]
HIDDEN = ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "LD_PRELOAD", "PYTHONWARNINGS")


@pytest.fixture
def hub(folder: Path) -> Iterator[Hub]:
    with Hub(folder) as running:
        yield running


def environment(hub: Hub, home: Path, **changes: str) -> dict[str, str]:
    kept = {name: value for name, value in ENVIRONMENT.items() if name not in HIDDEN}
    return kept | {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "XDG_CONFIG_HOME": str(home)} | changes


def words(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "dgemma", *arguments]


@pytest.fixture
def dgemma(hub: Hub, tmp_path: Path) -> Pull:
    def run(*arguments: str, **changes: str) -> "subprocess.CompletedProcess[str]":
        env = environment(hub, tmp_path / "home", **changes)
        return subprocess.run(words("models", *arguments), env=env, capture_output=True, text=True, timeout=300)

    return run


def leftovers(tmp_path: Path) -> list[Path]:
    return [*(tmp_path / "home").rglob("*.incomplete")]


def test_a_cut_download_goes_on_where_it_was_cut(hub: Hub, dgemma: Pull, folder: Path) -> None:
    with (folder / WEIGHTS).open("ab") as file:
        file.truncate(12_000_000)
    hub.cut = 11_000_000
    done = dgemma("pull", REPO)
    assert done.returncode == 0, done.stderr
    snapshot = Path(done.stdout.strip())
    assert snapshot.name == COMMIT
    assert all((snapshot / each.name).read_bytes() == each.read_bytes() for each in folder.iterdir())
    assert hub.fetched().count(WEIGHTS) == 2 and [part for _, _, part in hub.requests if part] == ["bytes=10485760-"]
    hub.requests.clear()
    assert "is complete" in dgemma("pull", REPO).stderr and hub.fetched() == []
    hub.requests.clear()
    assert dgemma("pull", f"{REPO}@main", "--offline").stdout == done.stdout and hub.requests == []


def test_what_has_arrived_is_kept(hub: Hub, dgemma: Pull) -> None:
    hub.failing = True
    failed = dgemma("pull", REPO)
    assert (failed.returncode, failed.stdout) == (6, "") and "Try again" in failed.stderr
    assert "Traceback" not in failed.stderr
    hub.failing = False
    hub.requests.clear()
    assert dgemma("pull", REPO).returncode == 0 and hub.fetched() == [WEIGHTS]


def test_an_interrupt_leaves_no_half_file(hub: Hub, dgemma: Pull, tmp_path: Path) -> None:
    hub.stalling = True
    env = environment(hub, tmp_path / "home")
    process = subprocess.Popen(words("models", "pull", REPO), env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert hub.stalled.wait(120)
    process.send_signal(signal.SIGINT)
    out, errors = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, b"") and b"Traceback" not in errors
    assert leftovers(tmp_path) == []
    hub.stalling = False
    assert dgemma("pull", REPO).returncode == 0


@pytest.mark.parametrize(
    ("name", "code", "advice"),
    [
        ("someone/missing", 3, "no repository"),
        (PRIVATE, 3, "hf auth login"),
        (GATED, 3, "hf auth login"),
        (f"{REPO}@nothing", 3, "no revision 'nothing'"),
    ],
)
def test_what_the_hub_refuses(dgemma: Pull, name: str, code: int, advice: str) -> None:
    done = dgemma("pull", name)
    assert (done.returncode, done.stdout) == (code, "") and advice in done.stderr, done.stderr
    assert done.stderr.startswith("dgemma: ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize(("flags", "changes"), [(["--offline"], {}), ([], {"HF_HUB_OFFLINE": "1"})])
def test_offline_asks_nobody(hub: Hub, dgemma: Pull, flags: list[str], changes: dict[str, str]) -> None:
    done = dgemma("pull", REPO, *flags, **changes)
    assert (done.returncode, done.stdout, hub.requests) == (3, "", []) and "hf download" in done.stderr


def test_a_hub_that_is_not_there(dgemma: Pull) -> None:
    done = dgemma("pull", REPO, HF_ENDPOINT="http://127.0.0.1:9")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (6, "", 1)

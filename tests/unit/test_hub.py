"""Names to folders, without any network: every download is a stub."""

import json
from pathlib import Path
from typing import NoReturn

import pytest
from huggingface_hub import errors

from dgemma import env, hub
from dgemma.aliases import REAL_MODEL
from dgemma.errors import ModelNotFoundError, NetworkError, UnsupportedError
from tiny_folder import write_folder

REPO = "someone/some-model"


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> NoReturn:
        raise AssertionError("the network was used")

    monkeypatch.setattr("socket.socket.connect", refuse)
    monkeypatch.setattr("socket.getaddrinfo", refuse)


def snapshots(
    monkeypatch: pytest.MonkeyPatch, cached: Path | None, fetched: Path | Exception | None = None
) -> list[dict]:
    calls: list[dict] = []

    def snapshot_download(repo: str, **options: object) -> str:
        calls.append({"repo": repo, **options})
        if options.get("local_files_only"):
            if cached is None:
                raise errors.LocalEntryNotFoundError("not here")
            return str(cached)
        if isinstance(fetched, Exception):
            raise fetched
        return str(fetched)

    monkeypatch.setattr("huggingface_hub.snapshot_download", snapshot_download)
    return calls


def http_error(kind: type[Exception], message: str) -> Exception:
    error = kind.__new__(kind)
    Exception.__init__(error, message)
    return error


def test_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hub.locate(str(folder)).folder == folder
    monkeypatch.chdir(folder.parent)
    assert hub.locate("model").folder == Path("model") and hub.locate("./model").revision is None
    with pytest.raises(ModelNotFoundError, match="no folder"):
        hub.locate("./nothing")
    with pytest.raises(ModelNotFoundError, match="No model called 'nothing'") as caught:
        hub.locate("nothing")
    assert "demo" in caught.value.remedy and "dgemma:bf16" in caught.value.remedy and caught.value.exit_code == 3


def test_the_cache_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = write_folder(tmp_path / "snapshots" / "abc123")
    calls = snapshots(monkeypatch, snapshot)
    assert hub.locate(f"{REPO}@main") == hub.Located(snapshot, REPO, "abc123")
    assert [call["revision"] for call in calls] == ["main"]


def test_alias(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = snapshots(monkeypatch, folder)
    assert hub.locate("dgemma:bf16").name == REAL_MODEL == calls[0]["repo"]


@pytest.mark.parametrize("by_environment", [False, True])
def test_offline(by_environment: bool, monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    calls = snapshots(monkeypatch, None)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1" if by_environment else "")
    with pytest.raises(ModelNotFoundError, match=REPO) as caught:
        hub.locate(REPO, offline=not by_environment)
    assert "hf download" in caught.value.remedy and all(call["local_files_only"] for call in calls)


def test_offline_with_the_real_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, no_network: None) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(ModelNotFoundError, match="not \\(completely\\) on this machine"):
        hub.locate(REPO, offline=True)


def test_incomplete_cache_is_completed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    half, whole = write_folder(tmp_path / "half"), write_folder(tmp_path / "whole")
    (half / "model.safetensors").unlink()
    (half / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "m-1.safetensors"}}))
    assert hub.missing_file(half) == "m-1.safetensors"
    snapshots(monkeypatch, half, whole)
    said: list[str] = []
    assert hub.locate(REPO, report=said.append).folder == whole and REPO in said[0]
    snapshots(monkeypatch, None, half)
    with pytest.raises(ModelNotFoundError, match=r"m-1\.safetensors"):
        hub.locate(REPO)


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (http_error(errors.GatedRepoError, "403"), ModelNotFoundError, "hf auth login"),
        (http_error(errors.RepositoryNotFoundError, "404"), ModelNotFoundError, "no repository"),
        (http_error(errors.RevisionNotFoundError, "404"), ModelNotFoundError, "no revision"),
        (errors.LocalEntryNotFoundError("no connection\nlong story"), NetworkError, "no connection"),
        (ConnectionError("reset"), NetworkError, "reset"),
    ],
)
def test_failures(error: Exception, kind: type[Exception], words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshots(monkeypatch, None, error)
    with pytest.raises(kind) as caught:
        hub.locate(REPO)
    assert words in caught.value.line() and "\n" not in caught.value.line()


@pytest.mark.parametrize(
    ("modules", "apple", "driver", "expected"),
    [
        ({"mlx", "torch"}, True, False, "mlx"),
        ({"mlx", "torch"}, False, True, "cuda"),
        ({"mlx", "torch"}, False, False, "mlx"),
        ({"mlx"}, False, True, "mlx"),
        ({"torch"}, False, False, "cuda"),
    ],
)
def test_default_backend(
    modules: set[str], apple: bool, driver: bool, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(env, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(env, "is_apple_silicon", lambda: apple)
    monkeypatch.setattr(env, "has_nvidia_driver", lambda: driver)
    assert env.default_backend() == expected


def test_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(env, "find_spec", lambda name: None)
    with pytest.raises(UnsupportedError, match="No backend"):
        env.default_backend()


def test_versions() -> None:
    assert {"platform", "python", "numpy", "tokenizers"} <= env.versions().keys()

"""A model's name to its folder: an alias, a path, or a repository of the Hugging Face hub, its cache first."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgemma.aliases import DEMO, REAL_MODEL, REPO, aliases, is_path
from dgemma.errors import CheckpointError, DgemmaError, ModelNotFoundError, NetworkError, WriteError
from dgemma.jsonfile import read_json
from dgemma.signals import before_leaving

_DEMO_FOLDER = Path(__file__).parent / "demo"
_WANTED = ("*.json", "*.jinja", "model*.safetensors")
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EACCES, errno.EPERM, errno.EROFS)
_HALF = "*.incomplete"
_NEEDED = ("config.json", "generation_config.json", "tokenizer.json")


@dataclass(frozen=True, slots=True)
class Located:
    """A folder with a whole model in it; `revision` is the commit of a hub repository."""

    folder: Path
    name: str
    revision: str | None = None


def locate(model: str, offline: bool = False, report: Callable[[str], None] = lambda line: None) -> Located:
    """Find `model`, downloading it only if it is not complete on this machine and `offline` allows it.

    Raises ModelNotFoundError, NetworkError. HF_HUB_OFFLINE counts as `offline`. `report` hears of a download.
    """
    names = aliases()
    name = names.get(model, model)
    if name == DEMO:
        return _demo()
    if is_path(name):
        return _local(name)
    match = REPO.fullmatch(name)
    if match is None:
        known = ", ".join((DEMO, *names))
        raise ModelNotFoundError(f"No model called {model!r}.", f"Give a folder, owner/name[@revision], or: {known}.")
    return _repository(match[1], match[2], offline or offline_by_environment(), report)


def resolve(model: str) -> tuple[str, str | None] | None:
    """The repository and revision that `model` (an alias or a name) means; None where it means a folder."""
    name = aliases().get(model, model)
    match = None if name == DEMO or is_path(name) else REPO.fullmatch(name)
    return None if match is None else (match[1], match[2])


def missing_bytes(repo: str, revision: str | None) -> int:
    """What a download would transfer. Raises ModelNotFoundError, NetworkError."""
    from huggingface_hub import snapshot_download

    try:
        wanted, silent = list(_WANTED), _counting(lambda count: None)
        files: list[Any] = snapshot_download(
            repo, revision=revision, allow_patterns=wanted, dry_run=True, tqdm_class=silent
        )
    except Exception as error:
        raise _explained(error, repo, revision) from error
    return sum(each.file_size for each in files if each.will_download)


def fetch(repo: str, revision: str | None, progress: Callable[[int], None]) -> Located:
    """Download what is missing; `progress` hears how many bytes have arrived. Raises as `missing_bytes`."""
    return _located(_download(repo, revision, _counting(progress)), repo, revision)


def missing_file(folder: Path) -> str | None:
    """The first file that a whole model folder has and this one lacks."""
    wanted = [*_NEEDED, *_weights(folder)]
    return next((name for name in wanted if not (folder / name).is_file()), None)


def _demo() -> Located:
    if missing_file(_DEMO_FOLDER):
        raise ModelNotFoundError("This installation has no demo model.", f"Name a model, e.g. -m {REAL_MODEL}.")
    return Located(_DEMO_FOLDER, DEMO)


def _local(name: str) -> Located:
    folder = Path(name).expanduser()
    if not folder.is_dir():
        raise ModelNotFoundError(f"There is no folder {name}.", "Give a folder that holds a config.json.")
    return Located(folder, name)


def _weights(folder: Path) -> list[str]:
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return ["model.safetensors"]
    try:
        weight_map = read_json(index).get("weight_map")
    except CheckpointError:
        return [index.name + " (readable)"]
    return sorted({str(shard) for shard in weight_map.values()}) if isinstance(weight_map, dict) else []


def offline_by_environment() -> bool:
    """Whether HF_HUB_OFFLINE is set."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _repository(repo: str, revision: str | None, offline: bool, report: Callable[[str], None]) -> Located:
    cached = _cached(repo, revision)
    if cached is not None:
        return _located(cached, repo, revision)
    if offline:
        raise ModelNotFoundError(
            f"{repo} is not (completely) on this machine, and downloads are switched off.",
            f"Run once without --offline and HF_HUB_OFFLINE, or: hf download {repo}",
        )
    report(f"Downloading {repo}; later runs use the copy on this machine.")
    return _located(_download(repo, revision), repo, revision)


def _located(folder: Path, repo: str, revision: str | None) -> Located:
    return Located(folder, repo, folder.name if folder.parent.name == "snapshots" else revision)


def _cached(repo: str, revision: str | None) -> Path | None:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo, revision=revision, local_files_only=True))
    except LocalEntryNotFoundError:
        return None
    except HFValidationError as error:
        raise ModelNotFoundError(f"{repo!r} is not a repository name: {error}.") from error
    return None if missing_file(folder) else folder


def _download(repo: str, revision: str | None, bar: type[Any] | None = None) -> Path:
    from huggingface_hub import snapshot_download

    try:
        with before_leaving(_half_files(repo).clear):
            folder = Path(snapshot_download(repo, revision=revision, allow_patterns=list(_WANTED), tqdm_class=bar))
    except Exception as error:
        raise _explained(error, repo, revision) from error
    if lacking := missing_file(folder):
        raise ModelNotFoundError(f"{repo} has no {lacking}.", "Is it a DiffusionGemma in safetensors format?")
    return folder


@dataclass(frozen=True, slots=True)
class _HalfFiles:
    """What a download writes into; nothing takes a half file up again, so that an interrupt must not leave it."""

    folder: Path
    foreign: frozenset[Path]

    def clear(self) -> None:
        """Delete those that were not there before."""
        for path in set(self.folder.glob(_HALF)) - self.foreign:
            path.unlink(missing_ok=True)


def _half_files(repo: str) -> _HalfFiles:
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / ("models--" + repo.replace("/", "--")) / "blobs"
    return _HalfFiles(folder, frozenset(folder.glob(_HALF)))


def _counting(progress: Callable[[int], None]) -> type[Any]:
    """A progress bar class that draws nothing and tells `progress` the bytes of whichever bar is furthest."""
    from io import StringIO

    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Counter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options.pop("name", None)
            super().__init__(*args, **options | {"file": StringIO(), "disable": False})

        def display(self, *args: Any, **options: Any) -> bool:
            return True

        def update(self, n: float | None = 1) -> bool | None:
            done: bool | None = super().update(n)
            if self.unit == "B":
                progress(int(self.n))
            return done

    return Counter


def _explained(error: Exception, repo: str, revision: str | None) -> DgemmaError:
    from huggingface_hub import errors

    if isinstance(error, errors.DryRunError) and isinstance(error.__cause__, Exception):
        error = error.__cause__
    if isinstance(error, errors.GatedRepoError):
        return ModelNotFoundError(
            f"{repo} is gated.", f"Accept its terms at https://huggingface.co/{repo}, then run: hf auth login"
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFoundError(f"{repo} has no revision {revision!r}.")
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelNotFoundError(f"There is no repository {repo}, or it is private.", "If private, run: hf auth login")
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return ModelNotFoundError(f"The hub does not let you read {repo}.", "Log in with: hf auth login")
    if isinstance(error, OSError) and error.errno in _UNWRITABLE:
        return WriteError(
            f"The Hugging Face cache cannot be written: {error.strerror}.",
            "Free some space, or set HF_HOME to another place; files that have arrived are kept.",
        )
    reason = str(error).strip().partition("\n")[0] or type(error).__name__
    return NetworkError(f"Downloading {repo} failed: {reason}", "Try again; files that have arrived are kept.")

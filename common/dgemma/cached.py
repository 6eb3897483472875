"""The DiffusionGemma models in the Hugging Face cache: what there is, how large, in which format."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dgemma.config import SUPPORTED_MODEL_TYPES
from dgemma.errors import CheckpointError, ModelNotFoundError
from dgemma.hub import missing_file
from dgemma.jsonfile import read_json
from dgemma.quantization import declared


@dataclass(frozen=True, slots=True)
class Cached:
    """One revision of a repository on this machine; `size` is bytes on disk, `refs` the names of its commit."""

    repo: str
    revision: str
    refs: tuple[str, ...]
    folder: Path
    size: int
    modified: float

    @property
    def complete(self) -> bool:
        """Whether every file that loading needs is there."""
        return missing_file(self.folder) is None

    @property
    def format(self) -> str:
        """How its weights are stored, as its config says."""
        return weight_format(self.folder)


def cached_models() -> list[Cached]:
    """All of them, by name; other models in the cache are left out."""
    return sorted(_scan(), key=lambda each: (each.repo.lower(), each.revision))


def find(name: str) -> list[Cached]:
    """The revisions that `owner/name` or `owner/name@revision` means. Raises ModelNotFoundError."""
    repo, _, revision = name.partition("@")
    found = [each for each in cached_models() if each.repo == repo and _matches(each, revision)]
    if not found:
        raise ModelNotFoundError(f"{name} is not in the cache.", "See: dgemma models list")
    return found


def remove(models: list[Cached]) -> int:
    """Delete revisions from the cache; returns the bytes freed."""
    from huggingface_hub import scan_cache_dir

    plan = scan_cache_dir().delete_revisions(*(each.revision for each in models))
    plan.execute()
    return int(plan.expected_freed_size)


def cache_folder() -> Path:
    """Where the Hugging Face hub keeps models on this machine."""
    from huggingface_hub.constants import HF_HUB_CACHE

    return Path(HF_HUB_CACHE)


def weight_format(folder: Path) -> str:
    """For people: "bfloat16", "mlx affine 4 bit", "modelopt NVFP4"; "?" where the config does not say."""
    try:
        raw = read_json(folder / "config.json")
        found = declared(raw)
    except CheckpointError:
        return "?"
    if found is None:
        return str(raw.get("dtype") or raw.get("torch_dtype") or "?")
    method = found.get("quant_method")
    if method and method != "mlx":
        return " ".join(str(part) for part in (method, found.get("quant_algo") or found.get("format")) if part)
    return f"mlx {found.get('mode') or 'affine'} {found.get('bits', '?')} bit"


def _scan() -> Iterator[Cached]:
    from huggingface_hub import scan_cache_dir
    from huggingface_hub.errors import CacheNotFound

    try:
        repos = scan_cache_dir().repos
    except CacheNotFound:
        return
    for repo in repos:
        for one in repo.revisions if repo.repo_type == "model" else ():
            if _is_ours(one.snapshot_path):
                yield _cached(repo.repo_id, one)


def _cached(repo: str, found: Any) -> Cached:
    refs = tuple(sorted(found.refs))
    return Cached(repo, found.commit_hash, refs, found.snapshot_path, found.size_on_disk, found.last_modified)


def _is_ours(folder: Path) -> bool:
    try:
        return read_json(folder / "config.json").get("model_type") in SUPPORTED_MODEL_TYPES
    except CheckpointError:
        return False


def _matches(each: Cached, revision: str) -> bool:
    return not revision or revision in each.refs or each.revision.startswith(revision)

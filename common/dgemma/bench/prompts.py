"""Profiles: versioned prompt files with a hash, and answers that can be checked where a prompt has one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal

from dgemma.errors import UsageError

_FOLDERS = (Path(__file__).parent / "prompts", Path(__file__).parents[3] / "benchmarks" / "prompts")


@dataclass(frozen=True, slots=True)
class Check:
    """How an answer is judged: `kind` names a function of `checks`, `answer` is what it wants."""

    kind: str
    answer: Any


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: chat messages, whether the model thinks first, and how to judge the answer."""

    id: str
    messages: tuple[Mapping[str, str], ...]
    think: bool = False
    check: Check | None = None

    @property
    def text(self) -> str:
        """The last message."""
        return self.messages[-1]["content"]


@dataclass(frozen=True, slots=True)
class Profile:
    """The prompts of one file and the limits it is run with; `hash` is of the file's bytes."""

    name: str
    version: int
    hash: str
    mode: Literal["adaptive", "fixed"]
    max_tokens: int
    prompts: tuple[Prompt, ...]
    steps: int | None = None
    prompt_tokens: int | None = None


def names() -> list[str]:
    """The profiles of this installation."""
    return sorted(path.stem for path in _folder().glob("*.jsonl"))


def load(name: str) -> Profile:
    """The profile called `name`, or the one in the file `name`. Raises UsageError."""
    path = Path(name) if name.endswith(".jsonl") else _folder() / f"{name}.jsonl"
    if not path.is_file():
        raise UsageError(f"There is no profile {name!r}.", f"Choose of: {', '.join(names())}; or give a .jsonl file.")
    data = path.read_bytes()
    try:
        header, *lines = (json.loads(line) for line in data.decode("utf-8").splitlines() if line.strip())
        prompts = tuple(_prompt(line) for line in lines)
        limits = {key: header.get(key) for key in ("steps", "prompt_tokens")}
        return Profile(
            name=header["profile"],
            version=header["version"],
            hash=sha256(data).hexdigest()[:16],
            mode=header["mode"],
            max_tokens=header["max_tokens"],
            prompts=prompts,
            **limits,
        )
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is not a profile: {type(error).__name__} {error}.") from error


def _folder() -> Path:
    return next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])


def _prompt(raw: Mapping[str, Any]) -> Prompt:
    messages = tuple(raw.get("messages") or ({"role": "user", "content": raw["prompt"]},))
    check = raw.get("check")
    return Prompt(raw["id"], messages, raw.get("think", False), Check(**check) if check else None)

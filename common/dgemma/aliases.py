"""Short names of models: a built-in table and a file of the user's."""

from __future__ import annotations

import os
import re
import tomllib
from pathlib import Path

from dgemma.errors import UsageError, require
from dgemma.outputs import write_file, writing

REAL_MODEL = "google/diffusiongemma-26B-A4B-it"
BUILT_IN = {
    "dgemma:bf16": REAL_MODEL,
    "dgemma:4bit": "mlx-community/diffusiongemma-26B-A4B-it-4bit",
    "dgemma:8bit": "mlx-community/diffusiongemma-26B-A4B-it-8bit",
    "dgemma:mxfp8": "mlx-community/diffusiongemma-26B-A4B-it-mxfp8",
}
DEMO = "demo"
REPO = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")
_NAME = re.compile(r"\w[\w.:-]*")


def alias_file() -> Path:
    """Where the user's own aliases are."""
    from platformdirs import user_config_path

    return user_config_path("dgemma") / "aliases.toml"


def aliases() -> dict[str, str]:
    """All aliases. Raises UsageError where the user's file is damaged."""
    return BUILT_IN | _own()


def is_path(name: str) -> bool:
    """Whether a model's name means a folder."""
    return name.startswith((".", "/", "~", os.sep)) or Path(name).is_dir()


def set_alias(name: str, target: str) -> None:
    """Write one of the user's aliases; an alias as target gives what it stands for. Raises UsageError, WriteError."""
    _check_name(name)
    _write(_own() | {name: _meaning(target)})


def remove_alias(name: str) -> None:
    """Remove one of the user's aliases. Raises UsageError, WriteError."""
    own = _own()
    require(name in own, f"There is no alias {name!r} of yours.", f"They are in {alias_file()}.")
    del own[name]
    _write(own)


def _check_name(name: str) -> None:
    taken = name == DEMO or name in BUILT_IN
    require(not taken, f"{name!r} is built in and stays what it is.", "Choose another name.")
    require(_NAME.fullmatch(name) is not None, f"{name!r} cannot be an alias.", "Use letters, digits and .:_-")


def _meaning(target: str) -> str:
    """What an alias for `target` stands for: a folder from the root, a repository, or the demo."""
    found = aliases().get(target, target)
    if is_path(found):
        folder = Path(found).expanduser().absolute()
        require((folder / "config.json").is_file(), f"{found} is not a model's folder.", "It has no config.json.")
        return str(folder)
    known = found == DEMO or REPO.fullmatch(found) is not None
    require(known, f"{target!r} is no model.", "Give a folder, owner/name[@revision], or a known alias.")
    return found


def _write(own: dict[str, str]) -> None:
    import tomli_w

    path = alias_file()
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    write_file(path, tomli_w.dumps(own).encode("utf-8"))


def _own() -> dict[str, str]:
    path = alias_file()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Correct or delete it.") from error
    require(all(isinstance(v, str) for v in found.values()), f'{path}: every line must read "alias" = "model".')
    for name in found:
        try:
            _check_name(name)
        except UsageError as error:
            raise UsageError(f"{path}: {error}", "Correct it there.") from None
    return {str(name): str(target) for name, target in found.items()}

"""Short names of models: a built-in table and a file of the user's."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from dgemma.errors import UsageError, require

REAL_MODEL = "google/diffusiongemma-26B-A4B-it"
BUILT_IN = {
    "dgemma:bf16": REAL_MODEL,
    "dgemma:4bit": "mlx-community/diffusiongemma-26B-A4B-it-4bit",
    "dgemma:8bit": "mlx-community/diffusiongemma-26B-A4B-it-8bit",
    "dgemma:mxfp8": "mlx-community/diffusiongemma-26B-A4B-it-mxfp8",
}
_NAME = re.compile(r"[\w.:-]+")


def alias_file() -> Path:
    """Where the user's own aliases are."""
    from platformdirs import user_config_path

    return user_config_path("dgemma") / "aliases.toml"


def aliases() -> dict[str, str]:
    """All aliases; the user's win. Raises UsageError where their file is damaged."""
    return BUILT_IN | _own()


def set_alias(name: str, target: str | None) -> None:
    """Write one of the user's aliases, or with None remove it. Raises UsageError."""
    own = _own()
    if target is None:
        require(name in own, f"There is no alias {name!r} of yours.", f"They are in {alias_file()}.")
        del own[name]
    else:
        require(_NAME.fullmatch(name) is not None, f"{name!r} cannot be an alias.", "Use letters, digits and .:_-")
        own[name] = target
    import tomli_w

    path = alias_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(".new")
    fresh.write_text(tomli_w.dumps(own), encoding="utf-8")
    fresh.replace(path)


def _own() -> dict[str, str]:
    path = alias_file()
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Correct or delete it.") from error
    require(all(isinstance(v, str) for v in found.values()), f'{path}: every line must read "alias" = "model".')
    return {str(name): str(target) for name, target in found.items()}

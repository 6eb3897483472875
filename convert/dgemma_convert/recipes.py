"""Which module is stored in which format: recipes as data, a pattern of the module's path to a format.

The first rule whose pattern occurs in the path decides; a module that no rule names stays unquantized. `CHOSEN` stands
for what the caller asks for with --bits or --mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from dgemma.errors import UsageError
from dgemma.quantization import QuantSpec

CHOSEN = None
EIGHT, SIX, FOUR = QuantSpec(8, 64), QuantSpec(6, 64), QuantSpec(4, 64)
DEFAULT, UNIFORM = "default", "uniform"
_EXPERTS = r"\.experts\."
_REST = r"embed_tokens|\.self_attn\.|\.mlp\.|router\.proj|self_conditioning\."
_GROUPS = {"affine": (128, 64, 32), "mxfp4": (32,), "mxfp8": (32,), "nvfp4": (16,)}
_WIDTHS = {"affine": 4, "mxfp4": 4, "mxfp8": 8, "nvfp4": 4}


@dataclass(frozen=True, slots=True)
class Rule:
    """Modules whose path contains `pattern`; `only` narrows it to the layers that weigh most (see `is_heavy`)."""

    pattern: str
    spec: QuantSpec | None
    only: bool = False


@dataclass(frozen=True, slots=True)
class Recipe:
    """Rules in order, and what they are good for; `chosen` is what CHOSEN means where the caller does not say."""

    about: str
    rules: tuple[Rule, ...]
    chosen: QuantSpec = FOUR

    @property
    def asks(self) -> bool:
        """Whether any of its formats is the caller's to choose."""
        return any(rule.spec is CHOSEN for rule in self.rules)


RECIPES: Mapping[str, Recipe] = {
    DEFAULT: Recipe(
        "experts as chosen (4-bit), embedding, attention, router, dense and self-conditioning MLP 8-bit",
        (Rule(_EXPERTS, CHOSEN), Rule(_REST, EIGHT)),
    ),
    "all-8bit": Recipe("everything 8-bit", (Rule(f"{_EXPERTS}|{_REST}", EIGHT),)),
    "experts-only": Recipe(
        "experts as chosen (nvfp4), everything else untouched, as NVIDIA's checkpoint",
        (Rule(_EXPERTS, CHOSEN),),
        QuantSpec(4, 16, "nvfp4"),
    ),
    "mixed-4-6": Recipe(
        "experts 4-bit, their down projections 6-bit in the first, the last and every third layer, the rest 6-bit",
        (Rule(r"\.experts\.down_proj", SIX, only=True), Rule(_EXPERTS, FOUR), Rule(_REST, SIX)),
    ),
    UNIFORM: Recipe("everything as chosen", (Rule(f"{_EXPERTS}|{_REST}", CHOSEN),)),
}


def recipe(name: str) -> Recipe:
    """The recipe called `name`."""
    if name not in RECIPES:
        raise UsageError(f"There is no recipe {name!r}.", f"Choose one of: {', '.join(RECIPES)}.")
    return RECIPES[name]


def check(name: str, bits: int | None, mode: str | None, group_size: int | None) -> None:
    """Raise UsageError where the recipe called `name` does not take one of these."""
    rules = recipe(name)
    for flag, value in (("--bits", bits), ("--mode", mode)):
        if value is not None and not rules.asks:
            raise UsageError(f"The recipe {name} fixes its formats and takes no {flag}.", _takers())
    chosen = choice(bits, mode, group_size) or rules.chosen
    if group_size is not None:
        _check_group(chosen.mode, group_size)


def _takers() -> str:
    return f"Those that take it: {', '.join(name for name, each in RECIPES.items() if each.asks)}."


def wanted(rules: Recipe, path: str, chosen: QuantSpec | None, layers: int) -> QuantSpec | None:
    """The format that a recipe wants for the module `path`."""
    for rule in rules.rules:
        if re.search(rule.pattern, path) and (not rule.only or is_heavy(path, layers)):
            return rule.spec or chosen or rules.chosen
    return None


def is_heavy(path: str, layers: int) -> bool:
    """Whether the module lies in the first or the last eighth of the layers, or in every third between."""
    match = re.search(r"\.layers\.(\d+)\.", path)
    if match is None:
        return False
    layer, edge = int(match[1]), layers // 8
    return layer < edge or layer >= layers - edge or (layer - edge) % 3 == 2


def choice(bits: int | None, mode: str | None, group_size: int | None) -> QuantSpec | None:
    """What --bits, --mode and --group-size ask for; None if they ask for nothing."""
    if bits is None and mode is None:
        return None
    mode = mode or "affine"
    if mode not in _GROUPS:
        raise UsageError(f"There is no mode {mode!r}.", f"Choose one of: {', '.join(_GROUPS)}.")
    bits = bits or _WIDTHS[mode]
    if (mode == "affine" and bits not in (2, 3, 4, 5, 6, 8)) or (mode != "affine" and bits != _WIDTHS[mode]):
        raise UsageError(f"{mode} has no {bits}-bit format.", "affine has 2, 3, 4, 5, 6 and 8; the others fix theirs.")
    size = group_size or (64 if mode == "affine" else _GROUPS[mode][0])
    _check_group(mode, size)
    return QuantSpec(bits, size, mode)


def _check_group(mode: str, size: int) -> None:
    if size not in _GROUPS[mode]:
        sizes = " or ".join(map(str, _GROUPS[mode]))
        raise UsageError(
            f"{mode} has groups of {sizes}, not {size}.", "Leave --group-size out, or choose another mode."
        )


def legal(spec: QuantSpec, columns: int) -> QuantSpec | None:
    """`spec` with the largest group that fits rows of `columns` and is not larger; None where no group fits."""
    sizes = (size for size in _GROUPS[spec.mode] if size <= spec.group_size and columns % size == 0)
    size = next(sizes, None)
    return None if size is None else QuantSpec(spec.bits, size, spec.mode)

"""What becomes of every tensor: decided from the source, the recipe and the flags before a byte is written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dgemma import names
from dgemma.errors import UsageError
from dgemma.quantization import QuantSpec
from dgemma.shards import Shape
from dgemma_convert import recipes
from dgemma_convert.floats import INDICES, itemsize
from dgemma_convert.pieces import EXACT, REQUANTIZED, Form, spelled
from dgemma_convert.source import Source, Weight

Layout = Literal["hub", "mlx"]
DTYPES = {"bf16": "BF16", "fp16": "F16", "fp32": "F32"}
_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_LOSSLESS = {("BF16", "F32"), ("F16", "F32")}
_EIGHT = QuantSpec(8, 32)
_NVFP4_GROUP = 16


@dataclass(frozen=True, slots=True)
class Options:
    """What the caller asks for; None leaves a choice to the source."""

    to: Layout = "mlx"
    bits: int | None = None
    mode: str | None = None
    group_size: int | None = None
    recipe: str | None = None
    dtype: str | None = None

    @property
    def quantizes(self) -> bool:
        """Whether formats are asked for; otherwise every tensor keeps its own as far as it can."""
        return any(value is not None for value in (self.bits, self.mode, self.recipe))

    def check(self) -> None:
        """Raise UsageError on a contradiction."""
        if self.to == "hub" and (self.quantizes or self.group_size):
            raise UsageError("The hub layout holds unquantized weights only.", "Use --to mlx, or leave --bits out.")
        if self.group_size and not self.quantizes:
            raise UsageError("--group-size needs --bits, --mode or --recipe.")
        if self.dtype is not None and self.dtype not in DTYPES:
            raise UsageError(f"There is no dtype {self.dtype!r}.", f"Choose one of: {', '.join(DTYPES)}.")
        if self.group_size not in (None, 16, 32, 64, 128):
            raise UsageError(f"There are no groups of {self.group_size}.", "Groups are 16, 32, 64 or 128.")
        recipes.check(recipes.DEFAULT if self.recipe is None else self.recipe, self.bits, self.mode, self.group_size)


@dataclass(frozen=True, slots=True)
class Output:
    """A tensor to be written."""

    part: str
    name: str
    dtype: str
    shape: Shape

    @property
    def nbytes(self) -> int:
        """Its size."""
        size = itemsize(self.dtype)
        for axis in self.shape:
            size *= axis
        return size


@dataclass(frozen=True, slots=True)
class Item:
    """One weight's way: into `form`, or plain as `dtype`.

    `keeps`: the stored parts go over as they are; `recasts`: the codes do, and the scales, of this dtype,
    get another one.
    """

    weight: Weight
    form: Form | None
    dtype: str
    keeps: bool
    label: str
    note: str
    outputs: tuple[Output, ...]
    recasts: str = ""

    @property
    def target(self) -> str:
        """The written format in a few characters."""
        return self.dtype if self.form is None else spelled(self.form.spec)

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return sum(output.nbytes for output in self.outputs)


@dataclass(frozen=True, slots=True)
class Plan:
    """Every weight's way, in the order of writing."""

    source: Source
    options: Options
    items: tuple[Item, ...]

    @property
    def nbytes(self) -> int:
        """Bytes written."""
        return sum(item.nbytes for item in self.items)

    @property
    def multiplied(self) -> bool:
        """Whether a multiplier stands beside any packed weight."""
        return any(item.form is not None and item.form.multiplied for item in self.items)


def make_plan(source: Source, options: Options) -> Plan:
    """Decide for every weight of `source`."""
    options.check()
    ordered = sorted(source.weights.values(), key=lambda weight: _natural(weight.name))
    return Plan(source, options, tuple(_item(weight, source, options) for weight in ordered))


def _natural(name: str) -> list[str | int]:
    return [int(part) if at % 2 else part for at, part in enumerate(re.split(r"(\d+)", name))]


def _item(weight: Weight, source: Source, options: Options) -> Item:
    dtype = _plain_dtype(weight, source, options)
    spec, note = _format(weight, source, options)
    stored = weight.form
    if spec is None:
        keeps = stored is None and weight.kind == dtype
        return Item(
            weight, None, dtype, keeps, _plain_label(weight, dtype), note, _outputs(weight, None, dtype, options)
        )
    if stored is not None and stored.spec == spec:
        return _repacked(weight, stored, dtype, note, options)
    form = Form(spec, dtype if spec.has_biases else "U8")
    return Item(weight, form, dtype, False, REQUANTIZED, note, _outputs(weight, form, dtype, options))


def _repacked(weight: Weight, stored: Form, dtype: str, note: str, options: Options) -> Item:
    """The same codes; affine scales in the dtype that is asked for."""
    asked = options.dtype is not None and stored.spec.has_biases
    form = replace(stored, scales=dtype) if asked else stored
    keeps, label = form == stored, weight.label
    if not keeps and (stored.scales, form.scales) not in _LOSSLESS:
        label, rounded = REQUANTIZED, f"the same codes, scales rounded to {form.scales}"
        note = f"{note}; {rounded}" if note else rounded
    return Item(
        weight, form, dtype, keeps, label, note, _outputs(weight, form, dtype, options), "" if keeps else stored.scales
    )


def _plain_dtype(weight: Weight, source: Source, options: Options) -> str:
    """The dtype of plain numbers and of new scales."""
    kinds = {piece.kind for piece in weight.pieces}
    stored = kinds.pop() if len(kinds) == 1 else ""
    if stored in INDICES:
        return stored
    if options.dtype is not None:
        return DTYPES[options.dtype]
    if stored in DTYPES.values():
        return stored
    keeps_values = options.to == "mlx" and not options.quantizes and weight.form is None
    return "F32" if keeps_values else _NAMES.get(source.model.dtype, "BF16")


def _format(weight: Weight, source: Source, options: Options) -> tuple[QuantSpec | None, str]:
    """The packed format to write, None for plain, and what there is to say about it."""
    if options.to == "hub":
        return None, ""
    if not options.quantizes:
        return _kept(weight)
    if len(weight.shape) < 2 or weight.name.startswith(names.VISION):
        return None, ""
    chosen = recipes.choice(options.bits, options.mode, options.group_size)
    rules = recipes.recipe(recipes.DEFAULT if options.recipe is None else options.recipe)
    spec = recipes.wanted(rules, names.module(weight.name), chosen, source.model.num_hidden_layers)
    if spec is None:
        return (None, "") if weight.form is None else _kept(weight)
    if options.group_size and options.group_size != _NVFP4_GROUP and spec.mode == "affine":
        spec = QuantSpec(spec.bits, options.group_size, spec.mode)
    return _fitting(spec, weight.columns)


def _fitting(spec: QuantSpec, columns: int) -> tuple[QuantSpec | None, str]:
    found = recipes.legal(spec, columns)
    if found is None:
        return None, f"left plain: no group of {spec.mode} divides {columns}"
    if found.group_size != spec.group_size:
        return found, f"groups of {found.group_size}: {spec.group_size} does not divide {columns}"
    return found, ""


def _kept(weight: Weight) -> tuple[QuantSpec | None, str]:
    if weight.form is not None:
        return weight.form.spec, ""
    if all(piece.kind in (*DTYPES.values(), *INDICES) for piece in weight.pieces):
        return None, ""
    found = recipes.legal(_EIGHT, weight.columns)
    if found is None:
        return None, f"left plain: no group divides {weight.columns}"
    return found, f"{weight.kind} has no exact counterpart"


def _plain_label(weight: Weight, dtype: str) -> str:
    kinds = {piece.kind for piece in weight.pieces}
    same = all(kind == dtype or (kind, dtype) in _LOSSLESS for kind in kinds)
    packed = weight.form is not None and weight.form.spec.mode != "affine" and not weight.form.multiplied
    return EXACT if same or (packed and dtype in ("BF16", "F32")) or dtype == "F32" else REQUANTIZED


def _outputs(weight: Weight, form: Form | None, dtype: str, options: Options) -> tuple[Output, ...]:
    if form is None:
        return (Output("weight", _plain_name(weight, options), dtype, weight.shape),)
    path = names.module(weight.name)
    return tuple(Output(part, f"{path}.{part}", kind, shape) for part, kind, shape in _parts(weight, form))


def _plain_name(weight: Weight, options: Options) -> str:
    """MLX modules hold their weight under that name; the hub's expert stacks are bare."""
    bare = weight.name.endswith((".experts.gate_up_proj", ".experts.down_proj"))
    return f"{weight.name}.weight" if bare and options.to == "mlx" else weight.name


def _parts(weight: Weight, form: Form) -> Iterator[tuple[str, str, Shape]]:
    rows, spec = weight.shape[:-1], form.spec
    groups = (*rows, weight.columns // spec.group_size)
    yield "weight", "U32", (*rows, weight.columns * spec.bits // 32)
    yield "scales", form.scales, groups
    if spec.has_biases:
        yield "biases", form.scales, groups
    if form.multiplied:
        yield names.MULTIPLIER.removeprefix("."), "F32", rows

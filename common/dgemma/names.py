"""Tensor names: which ones a checkpoint must hold, and how the published spellings map onto them.

The canonical spelling is the hub layout's. A quantized module `path` holds `path`.weight (packed), `path`.scales,
in affine mode `path`.biases, and where the scales are not the whole story `path`.weight_scale_2: one float32 a row of
the matrix, by which the product is multiplied. Nothing here reads a tensor.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from dgemma.config import LayerShape, ModelConfig
from dgemma.errors import CheckpointError
from dgemma.quantization import Quantization, QuantSpec
from dgemma.shards import Shape

T = TypeVar("T")
DECODER, ENCODER = "model.decoder.", "model.encoder.language_model."
VISION = ("model.encoder.vision_tower.", "model.encoder.embed_vision.")
EMBEDDING = DECODER + "embed_tokens.weight"
MULTIPLIER = ".weight_scale_2"
_LAYER_NORMS = (
    "input_layernorm",
    "post_attention_layernorm",
    "pre_feedforward_layernorm",
    "post_feedforward_layernorm",
    "post_feedforward_layernorm_1",
    "post_feedforward_layernorm_2",
    "pre_feedforward_layernorm_2",
)
_FUSED = re.compile(r"(.*\.experts\.(?:gate_up_proj|down_proj))\.weight")
_SWITCH = re.compile(r"(.*\.experts)\.switch_glu\.(gate|up|down)_proj\.(weight|scales|biases)")
_PER_EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(gate|up|down)_proj\.weight")
_SCALAR = re.compile(re.escape(ENCODER) + r"layers\.\d+\.layer_scalar")


@dataclass(frozen=True, slots=True)
class Source:
    """The stored tensors that make up one canonical tensor.

    With `experts` 0: the parts joined along axis 1 (a single part as it is). Otherwise `parts` runs expert by expert:
    each expert's parts are joined along axis 0, then the experts are stacked.
    """

    parts: tuple[str, ...]
    experts: int = 0

    def assemble(self, load: Callable[[str], T], join: Callable[[list[T], int], T], stack: Callable[[list[T]], T]) -> T:
        """Build the tensor from `load(name)`, `join(tensors, axis)` and `stack(tensors)`."""
        loaded = [load(name) for name in self.parts]
        if len(loaded) == 1 and not self.experts:
            return loaded[0]
        if not self.experts:
            return join(loaded, 1)
        each = len(loaded) // self.experts
        rows = [loaded[i : i + each] for i in range(0, len(loaded), each)]
        return stack([row[0] if each == 1 else join(row, 0) for row in rows])


@dataclass(frozen=True, slots=True)
class Plan:
    """What to do with every stored tensor: build, compare and drop, or skip."""

    sources: Mapping[str, Source]
    duplicates: Mapping[str, str]
    skipped: tuple[str, ...]


def canonical(name: str) -> str:
    """The hub layout's spelling of a stored name that differs only in spelling. Idempotent."""
    match = _FUSED.fullmatch(name)
    return match[1] if match else name


def module(name: str) -> str:
    """The module path that a canonical weight belongs to, as quantization overrides spell it."""
    return name.removesuffix(".weight")


def plan(names: Iterable[str]) -> Plan:
    """Sort stored names into sources of canonical tensors, duplicates of them, and vision tensors to skip."""
    sources: dict[str, Source] = {}
    duplicates: dict[str, str] = {}
    skipped: list[str] = []
    parts: dict[str, dict[tuple[int, str], str]] = {}
    for name in sorted(names):
        twin = _twin(name)
        if name.startswith(VISION):
            skipped.append(name)
        elif twin is not None:
            duplicates[name] = twin
        elif piece := _piece(name):
            target, key = piece
            parts.setdefault(target, {})[key] = name
        else:
            sources[_fresh(canonical(name), sources)] = Source((name,))
    for target, pieces in parts.items():
        sources[_fresh(target, sources)] = _join(pieces)
    return Plan(sources, duplicates, tuple(skipped))


def expected_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Every text tensor of an unquantized checkpoint in the hub layout, with its shape."""
    hidden, dense = config.hidden_size, config.intermediate_size
    found: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden), DECODER + "norm.weight": (hidden,)}
    conditioning = DECODER + "self_conditioning."
    found[conditioning + "pre_norm.weight"] = (hidden,)
    found.update({conditioning + name: shape for name, shape in _glu(hidden, dense)})
    for index, layer in enumerate(config.layers):
        prefix = f"{DECODER}layers.{index}."
        found.update({prefix + name: shape for name, shape in _layer(config, layer)})
        found[f"{ENCODER}layers.{index}.layer_scalar"] = (1,)
    return found


def check_strict(found: Mapping[str, Shape], config: ModelConfig, quantization: Quantization | None = None) -> None:
    """Compare canonical names and shapes with what `config` needs; one CheckpointError names what differs."""
    wanted = dict(_stored(expected_tensors(config), found, quantization))
    missing = [f"{name} {list(wanted[name])}" for name in sorted(wanted.keys() - found.keys())]
    unexpected = [f"{name} {list(found[name])}" for name in sorted(found.keys() - wanted.keys())]
    misshaped = [
        f"{name} {list(found[name])} instead of {list(shape)}"
        for name, shape in sorted(wanted.items())
        if name in found and found[name] != shape
    ]
    report = [_first_five("missing", missing), _first_five("unexpected", unexpected)]
    report.append(_first_five("mis-shaped", misshaped))
    if any(report):
        raise CheckpointError(
            f"The weights do not fit config.json: {'; '.join(filter(None, report))}.",
            "The folder is incomplete, damaged, or of another model.",
        )


def _twin(name: str) -> str | None:
    if name == "lm_head.weight":
        return EMBEDDING
    if name.startswith(ENCODER) and not _SCALAR.fullmatch(name):
        return canonical(DECODER + name.removeprefix(ENCODER))
    return None


def _piece(name: str) -> tuple[str, tuple[int, str]] | None:
    """The canonical tensor that `name` is a part of, and its place there: (expert, "gate" | "up" | "down")."""
    if match := _SWITCH.fullmatch(name):
        base, kind, suffix = match.groups()
        return _experts(base, kind, suffix), (-1, kind)
    if match := _PER_EXPERT.fullmatch(name):
        base, expert, kind = match.groups()
        return _experts(base, kind, "weight"), (int(expert), kind)
    return None


def _experts(base: str, kind: str, suffix: str) -> str:
    return canonical(f"{base}.{'down' if kind == 'down' else 'gate_up'}_proj.{suffix}")


def _join(pieces: Mapping[tuple[int, str], str]) -> Source:
    ordered = sorted(pieces)
    experts = {expert for expert, _ in ordered}
    kinds = {kind for _, kind in ordered}
    whole = kinds in ({"down"}, {"gate", "up"}) and len(ordered) == len(experts) * len(kinds)
    if not whole or experts not in ({-1}, set(range(len(experts)))):
        raise CheckpointError(
            f"Expert weights are incomplete beside {pieces[ordered[0]]}.", "Download the model again."
        )
    return Source(tuple(pieces[key] for key in ordered), 0 if experts == {-1} else len(experts))


def _fresh(name: str, taken: Mapping[str, Source]) -> str:
    if name in taken:
        raise CheckpointError(f"{name} is stored twice, in two spellings.")
    return name


def _glu(hidden: int, inner: int) -> Iterator[tuple[str, Shape]]:
    yield "gate_proj.weight", (inner, hidden)
    yield "up_proj.weight", (inner, hidden)
    yield "down_proj.weight", (hidden, inner)


def _layer(config: ModelConfig, layer: LayerShape) -> Iterator[tuple[str, Shape]]:
    hidden, experts, inner = config.hidden_size, config.num_experts, config.moe_intermediate_size
    queries, keys = config.num_attention_heads * layer.head_dim, layer.kv_heads * layer.head_dim
    yield "self_attn.q_proj.weight", (queries, hidden)
    yield "self_attn.k_proj.weight", (keys, hidden)
    if not layer.k_eq_v:
        yield "self_attn.v_proj.weight", (keys, hidden)
    yield "self_attn.o_proj.weight", (hidden, queries)
    yield from ((f"self_attn.{name}_norm.weight", (layer.head_dim,)) for name in "qk")
    yield from ((f"mlp.{name}", shape) for name, shape in _glu(hidden, config.intermediate_size))
    yield "router.proj.weight", (experts, hidden)
    yield "router.scale", (hidden,)
    yield "router.per_expert_scale", (experts,)
    yield "experts.gate_up_proj", (experts, 2 * inner, hidden)
    yield "experts.down_proj", (experts, hidden, inner)
    yield from ((f"{name}.weight", (hidden,)) for name in _LAYER_NORMS)
    yield "layer_scalar", (1,)


def _stored(
    plain: Mapping[str, Shape], found: Mapping[str, Shape], quantization: Quantization | None
) -> Iterator[tuple[str, Shape]]:
    """Expected names and shapes, packed where a quantized module's scales were found."""
    for name, shape in plain.items():
        spec = quantization.spec(module(name)) if quantization else None
        if spec is None or len(shape) < 2 or f"{module(name)}.scales" not in found:
            yield name, shape
        else:
            yield from _packed(name, shape, spec)
            if module(name) + MULTIPLIER in found:
                yield module(name) + MULTIPLIER, shape[:-1]


def _packed(name: str, shape: Shape, spec: QuantSpec) -> Iterator[tuple[str, Shape]]:
    *rows, columns = shape
    groups = (*rows, columns // spec.group_size)
    yield name, (*rows, columns * spec.bits // 32)
    yield f"{module(name)}.scales", groups
    if spec.has_biases:
        yield f"{module(name)}.biases", groups


def _first_five(kind: str, items: Sequence[str]) -> str:
    more = ", ..." if len(items) > 5 else ""
    return f"{len(items)} {kind}: {', '.join(items[:5])}{more}" if items else ""

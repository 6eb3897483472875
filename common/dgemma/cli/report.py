"""A generation as JSON and as one line of statistics."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from dgemma.channels import Piece
from dgemma.events import Block, Draft, Event
from dgemma.generation import Generation
from dgemma.infill import Filled
from dgemma.stats import Stats
from dgemma.tokenizer import Tokenizer

SCHEMA = 1


def as_object(generation: Generation) -> dict[str, Any]:
    """The object of `--json`."""
    origin = generation.origin
    found = {
        "schema": SCHEMA,
        "text": generation.text,
        "reasoning": generation.reasoning,
        "tool_calls": [call.as_dict() for call in generation.tool_calls],
        "tokens": list(generation.tokens),
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "model": origin.model,
        "revision": origin.revision,
        "backend": origin.backend,
        "device": origin.device,
        "stats": asdict(generation.stats),
    }
    return found if origin.kernels is None else found | {"kernels": origin.kernels}


def as_event(event: Event, generation: Generation | None, tokenizer: Tokenizer) -> dict[str, Any]:
    """A line of `--jsonl`; the finish event carries everything that `--json` prints."""
    if isinstance(event, Draft):
        found: dict[str, Any] = asdict(event) | {"text": tokenizer.decode(event.tokens)}
    elif isinstance(event, Block):
        found = {"canvas": event.canvas, "steps": event.steps, "converged": event.converged}
        found |= {"tokens": event.tokens} | _texts(event.pieces)
    else:
        assert generation is not None
        found = as_object(generation)
    for hidden in ("handle", "entropy", "doubted"):
        found.pop(hidden, None)
    return {"event": type(event).__name__.lower(), "schema": SCHEMA} | found


def stats_line(generation: Generation) -> str:
    """Everything of interest, between dots."""
    stats, origin = generation.stats, generation.origin
    parts = [
        "stopped" if generation.finish_reason == "cancelled" else "",
        f"{stats.completion_tokens} tokens",
        f"{stats.decode_tok_s:.1f} tok/s",
        f"{stats.canvases} blocks",
        f"{stats.denoising_steps} steps",
        f"{stats.tokens_per_forward:.1f} tok/step",
        *_verified(stats),
        f"prompt {stats.prompt_tokens}" + (f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""),
        f"first block {stats.time_to_first_block_s:.2f} s",
        f"total {stats.total_s:.2f} s",
        f"peak {stats.peak_memory_bytes / 1e9:.2f} GB",
        f"seed {generation.seed}",
        f"{origin.backend} {origin.device}",
    ]
    return " · ".join(filter(None, parts))


def _verified(stats: Stats) -> Iterable[str]:
    if stats.accepted_lengths:
        yield f"{sum(stats.accepted_lengths) / len(stats.accepted_lengths):.1f} verified/block"
        yield f"{stats.forwards_per_token:.2f} passes/token"
        yield f"{len(stats.near_ties)} near ties"


def fill_line(found: Filled) -> str:
    """What filling the gaps of a text cost, and how certain the model was."""
    stats, origin = found.stats, found.origin
    parts = [
        f"{sum(map(len, found.tokens))} tokens filled",
        f"entropy {found.entropy:.3f}",
        f"{stats.canvases} blocks",
        f"{stats.denoising_steps} steps",
        f"prompt {stats.prompt_tokens}",
        f"total {stats.total_s:.2f} s",
        f"peak {stats.peak_memory_bytes / 1e9:.2f} GB",
        f"seed {found.seed}",
        f"{origin.backend} {origin.device}",
    ]
    return " · ".join(parts)


def turn_line(generation: Generation) -> str:
    """What a turn of a conversation cost, short enough for one line of a terminal."""
    stats = generation.stats
    parts = [
        "stopped" if generation.finish_reason == "cancelled" else "",
        f"{stats.completion_tokens} tokens",
        f"{stats.decode_tok_s:.1f} tok/s",
        f"{stats.denoising_steps} steps",
        f"prompt {stats.prompt_tokens}" + (f" ({stats.cached_tokens} cached)" if stats.cached_tokens else ""),
        f"seed {generation.seed}",
    ]
    return " · ".join(filter(None, parts))


def _texts(pieces: Iterable[Piece]) -> dict[str, Any]:
    pieces = tuple(pieces)
    return {
        "text": "".join(piece.text for piece in pieces if piece.kind == "answer"),
        "reasoning": "".join(piece.text for piece in pieces if piece.kind == "reasoning"),
        "tool_calls": [piece.call.as_dict() for piece in pieces if piece.call],
    }

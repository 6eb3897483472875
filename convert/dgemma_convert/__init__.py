"""The weight-format converter: every published format in, the hub layout or the MLX layout out."""

from dgemma_convert.conversion import convert, preview, rehearse
from dgemma_convert.place import begun
from dgemma_convert.plan import Options, Plan

__all__ = ["Options", "Plan", "begun", "convert", "preview", "rehearse"]

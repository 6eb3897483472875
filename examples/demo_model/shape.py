"""The size of the demo model."""

from dataclasses import dataclass

FULL, SLIDING = "full_attention", "sliding_attention"


@dataclass(frozen=True, slots=True)
class Shape:
    """Every number that decides a tensor's shape or a pass's result."""

    vocab: int = 128
    hidden: int = 128
    dense: int = 128
    expert: int = 64
    experts: int = 8
    top_k: int = 2
    heads: int = 4
    kv_sliding: int = 2
    kv_full: int = 1
    head_sliding: int = 32
    head_full: int = 64
    canvas: int = 32
    window: int = 32
    positions: int = 4096
    rotated: float = 0.25
    softcap: float = 30.0
    eps: float = 1e-6
    layers: tuple[str, ...] = (SLIDING, FULL, SLIDING, FULL, FULL)

    def is_full(self, layer: int) -> bool:
        """Whether a layer attends to the whole prefix."""
        return self.layers[layer] == FULL

    def kv_heads(self, layer: int) -> int:
        """Key/value heads of a layer."""
        return self.kv_full if self.is_full(layer) else self.kv_sliding

    def head(self, layer: int) -> int:
        """Head size of a layer."""
        return self.head_full if self.is_full(layer) else self.head_sliding

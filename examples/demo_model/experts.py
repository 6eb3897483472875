"""The mixture of experts: top-k routing and one matrix product per expert over its own tokens."""

import torch
from fused import geglu
from shape import Shape
from torch import Tensor, nn
from torch.nn import functional as F


def glu(x: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    """The gated unit; gate rows come first in gate_up."""
    return F.linear(geglu(F.linear(x, gate_up)), down)


class _Permute(torch.autograd.Function):
    """Rows in a new order; the backward pass is the inverse gather, `copies` rows summed into one."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, x: Tensor, rows: Tensor, back: Tensor, copies: int) -> Tensor:
        ctx.save_for_backward(back)
        ctx.copies = copies
        return x.index_select(0, rows)

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor, None, None, None]:
        (back,) = ctx.saved_tensors
        rows = grad.index_select(0, back)
        return (rows if ctx.copies == 1 else rows.view(-1, ctx.copies, grad.shape[-1]).sum(1)), None, None, None


class Router(nn.Module):
    """Chooses experts from the normalised residual stream."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.top_k, self.root = shape.top_k, shape.hidden**-0.5
        self.proj = nn.Linear(shape.hidden, shape.experts, bias=False)
        self.scale = nn.Parameter(torch.full((shape.hidden,), shape.hidden**0.5))
        self.per_expert_scale = nn.Parameter(torch.ones(shape.experts))

    def forward(self, normed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Weights and indexes of the chosen experts, and the balance loss."""
        scores = F.linear(normed, self.proj.weight * (self.scale * self.root))
        top, chosen = scores.topk(self.top_k, dim=-1)
        weights = top.softmax(-1) * self.per_expert_scale[chosen]
        return weights, chosen, self._balance(scores, chosen)

    def _balance(self, scores: Tensor, chosen: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            return scores.new_zeros(())
        experts = scores.shape[-1]
        load = torch.bincount(chosen.flatten(), minlength=experts) / chosen.numel()
        return experts * (load * scores.softmax(-1).mean(0)).sum()


class Experts(nn.Module):
    """The stacked expert weights."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_up_proj = nn.Parameter(torch.empty(shape.experts, 2 * shape.expert, shape.hidden))
        self.gate_up_proj.parts = 2
        self.down_proj = nn.Parameter(torch.empty(shape.experts, shape.hidden, shape.expert))

    def forward(self, z: Tensor, norm: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The weighted sum of each token's experts; z is normalised, its norm weight goes into the matrices."""
        copies = chosen.shape[-1]
        flat = chosen.flatten()
        order = flat.argsort(stable=True)
        back = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
        counts = flat.bincount(minlength=len(self.gate_up_proj)).tolist()
        sorted_z = _Permute.apply(z, order // copies, back, copies)
        y = self._run(sorted_z, self.gate_up_proj * norm, counts)
        y = _Permute.apply(y, back, order, 1).view(len(z), copies, -1)
        return (y * weights.unsqueeze(-1)).sum(1)

    def _run(self, z: Tensor, gate_up: Tensor, counts: list[int]) -> Tensor:
        gate_ups, downs = gate_up.unbind(), self.down_proj.unbind()
        wide = torch.cat([F.linear(part, w) for part, w in zip(z.split(counts), gate_ups, strict=True)])
        inner = geglu(wide)
        return torch.cat([F.linear(part, w) for part, w in zip(inner.split(counts), downs, strict=True)])

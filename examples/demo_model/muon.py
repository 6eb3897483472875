"""Muon: momentum whose matrices are orthogonalised by a Newton-Schulz iteration."""

from collections import defaultdict

import torch
from torch import Tensor
from workers import share

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Moves the singular values of a stack [n, rows, columns], rows <= columns, towards one."""
    a, b, c = COEFFICIENTS
    x = matrices / (torch.linalg.matrix_norm(matrices, keepdim=True) + 1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = a * x + torch.baddbmm(gram, gram, gram, beta=b, alpha=c) @ x
    return x


class Muon(torch.optim.Optimizer):
    """Updates matrices, and stacks of matrices, of equal shape together."""

    def __init__(self, parameters: list[Tensor], lr: float, momentum: float = 0.95, decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        """One update of every parameter."""
        for group in self.param_groups:
            stacks: dict[tuple[int, ...], list[Tensor]] = defaultdict(list)
            for parameter in (p for p in group["params"] if p.grad is not None):
                stacks[tuple(sorted(_matrices(parameter, parameter).shape[1:]))].append(parameter)
            for parameters in stacks.values():
                self._update(parameters, group)

    def _update(self, parameters: list[Tensor], group: dict[str, float]) -> None:
        stacks = [_matrices(self._direction(p, group["momentum"]), p) for p in parameters]
        wide = torch.cat([m.mT if m.shape[1] > m.shape[2] else m for m in stacks])
        updates = share(orthogonalise, wide).split([len(m) for m in stacks])
        for parameter, update, stack in zip(parameters, updates, stacks, strict=True):
            rows, columns = stack.shape[1:]
            update = update.mT if rows > columns else update
            parameter.mul_(1 - group["lr"] * group["decay"])
            parameter.add_(update.reshape(parameter.shape), alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)

    def _direction(self, parameter: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        buffer = state.setdefault("momentum", torch.zeros_like(parameter))
        buffer.lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(buffer, momentum)


def _matrices(values: Tensor, parameter: Tensor) -> Tensor:
    """The stack [n, rows, columns] that a parameter holds; `parts` of them lie one above the other in each matrix."""
    rows, columns = parameter.shape[-2:]
    return values.reshape(-1, rows // getattr(parameter, "parts", 1), columns)

"""The training model: DiffusionGemma's text stack in fp32, with the hub's tensor names."""

import torch
from attention import Attention, Cache
from experts import Experts, Router, glu
from fused import rms
from rotary import tables
from shape import Shape
from torch import Tensor, nn
from torch.nn import functional as F

HIDDEN = float("-inf")


class Mlp(nn.Module):
    """The dense gated unit."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(shape.hidden, shape.dense, bias=False)
        self.up_proj = nn.Linear(shape.hidden, shape.dense, bias=False)
        self.down_proj = nn.Linear(shape.dense, shape.hidden, bias=False)

    def forward(self, x: Tensor, norm: Tensor) -> Tensor:
        """down(gelu(gate x) * up x) of normalised x, whose norm weight goes into the matrices."""
        return glu(x, torch.cat((self.gate_proj.weight, self.up_proj.weight)) * norm, self.down_proj.weight)


class Layer(nn.Module):
    """Attention, then the dense and the expert branch in parallel."""

    NORMS = (
        "input_layernorm",
        "post_attention_layernorm",
        "pre_feedforward_layernorm",
        "pre_feedforward_layernorm_2",
        "post_feedforward_layernorm",
        "post_feedforward_layernorm_1",
        "post_feedforward_layernorm_2",
    )

    def __init__(self, shape: Shape, index: int) -> None:
        super().__init__()
        self.self_attn = Attention(shape, index)
        self.mlp, self.router, self.experts = Mlp(shape), Router(shape), Experts(shape)
        for name in self.NORMS:
            self.register_parameter(name, nn.Parameter(torch.ones(shape.hidden)))
        self.layer_scalar = nn.Parameter(torch.ones(1))
        self.encoder_layer_scalar = nn.Parameter(torch.ones(1))

    def finish(self, x: Tensor, attended: Tensor, scalar: Tensor) -> tuple[Tensor, Tensor]:
        """Everything after attention; also returns the balance loss."""
        x = x + rms(attended, self.post_attention_layernorm)
        normed = rms(x)
        dense = rms(self.mlp(normed, self.pre_feedforward_layernorm), self.post_feedforward_layernorm_1)
        sparse, balance = self._sparse(normed.flatten(0, 1))
        sparse = rms(sparse, self.post_feedforward_layernorm_2).view_as(x)
        return (x + rms(dense + sparse, self.post_feedforward_layernorm)) * scalar, balance

    def _sparse(self, normed: Tensor) -> tuple[Tensor, Tensor]:
        weights, chosen, balance = self.router(normed)
        return self.experts(normed, self.pre_feedforward_layernorm_2, weights, chosen), balance


class Model(nn.Module):
    """One set of weights with two roles: a causal encoder and a bidirectional canvas pass."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape, self.root = shape, shape.hidden**0.5
        self.embed_tokens = nn.Parameter(torch.empty(shape.vocab, shape.hidden))
        self.layers = nn.ModuleList(Layer(shape, i) for i in range(len(shape.layers)))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.conditioner, self.conditioner_norm = Mlp(shape), nn.Parameter(torch.ones(shape.hidden))
        self.rotary = [tables(shape, full) for full in (False, True)]

    def initialise(self, generator: torch.Generator) -> None:
        """Normal weights with variance 1 / fan-in."""
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=parameter.shape[-1] ** -0.5, generator=generator)

    def logits(self, hidden: Tensor) -> Tensor:
        """Softcapped logits of final hidden states."""
        cap = self.shape.softcap
        return cap * torch.tanh(F.linear(hidden, self.embed_tokens) / cap)

    def encode(self, ids: Tensor) -> tuple[Tensor, list[Cache], Tensor]:
        """The causal pass over whole sequences [batch, time]: hidden states, cache, balance loss."""
        x = F.embedding(ids, self.embed_tokens) * self.root
        masks = self._causal_masks(ids.shape[1])
        cache: list[Cache] = []
        balances = []
        for i, layer in enumerate(self.layers):
            cos, sin = (table[: ids.shape[1]] for table in self.rotary[self.shape.is_full(i)])
            q, k, v = layer.self_attn.project(rms(x), layer.input_layernorm, cos, sin)
            cache.append((k, v))
            attended = layer.self_attn.attend(q, k, v, masks[self.shape.is_full(i)])
            x, balance = layer.finish(x, attended, layer.encoder_layer_scalar)
            balances.append(balance)
        return rms(x, self.norm), cache, torch.stack(balances).mean()

    def denoise(
        self, canvas: Tensor, starts: Tensor, cache: list[Cache], signal: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """The canvas pass: logits of canvases [batch, length] that begin at `starts`, and the balance loss."""
        x = self._canvas_input(canvas, signal)
        positions = starts[:, None] + torch.arange(canvas.shape[1])
        masks = self._canvas_masks(starts, cache[0][0].shape[1], canvas.shape[1])
        balances = []
        for i, layer in enumerate(self.layers):
            cos, sin = (table[positions] for table in self.rotary[self.shape.is_full(i)])
            q, k, v = layer.self_attn.project(rms(x), layer.input_layernorm, cos, sin)
            k, v = (torch.cat(pair, dim=1) for pair in zip(cache[i], (k, v), strict=True))
            attended = layer.self_attn.attend(q, k, v, masks[self.shape.is_full(i)])
            x, balance = layer.finish(x, attended, layer.layer_scalar)
            balances.append(balance)
        return self.logits(rms(x, self.norm)), torch.stack(balances).mean()

    def _canvas_input(self, canvas: Tensor, signal: Tensor | None) -> Tensor:
        x = F.embedding(canvas, self.embed_tokens) * self.root
        if signal is not None:
            soft = signal.softmax(-1) @ self.embed_tokens * self.root
            x = x + self.conditioner(rms(soft), self.conditioner_norm)
        return rms(x)

    def _causal_masks(self, time: int) -> tuple[Tensor, Tensor]:
        age = torch.arange(time)[:, None] - torch.arange(time)
        full, sliding = age < 0, (age < 0) | (age >= self.shape.window)
        return _additive(sliding[None, None]), _additive(full[None, None])

    def _canvas_masks(self, starts: Tensor, prefix: int, length: int) -> tuple[Tensor, Tensor]:
        keys = torch.arange(prefix + length)
        own, starts = keys >= prefix, starts[:, None]
        full = own | (keys < starts)
        sliding = own | ((keys < starts) & (keys > starts - self.shape.window))
        return _additive(~sliding[:, None, None]), _additive(~full[:, None, None])


def _additive(hidden: Tensor) -> Tensor:
    return torch.zeros(hidden.shape).masked_fill_(hidden, HIDDEN)

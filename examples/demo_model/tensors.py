"""The training model's parameters under their hub names."""

from pathlib import Path

import torch
from model import Layer, Model
from safetensors.torch import load_file
from torch import Tensor

DECODER = "model.decoder"


def hub_tensors(model: Model) -> dict[str, Tensor]:
    """Every tensor of model.safetensors."""
    return {name: parameter.detach().clone().contiguous() for name, parameter in _parameters(model).items()}


@torch.no_grad()
def adopt(model: Model, folder: Path) -> None:
    """Takes the weights of an exported model."""
    stored = load_file(folder / "model.safetensors")
    for name, parameter in _parameters(model).items():
        parameter.copy_(stored[name])


def _parameters(model: Model) -> dict[str, Tensor]:
    named = {
        f"{DECODER}.embed_tokens.weight": model.embed_tokens,
        f"{DECODER}.norm.weight": model.norm,
        f"{DECODER}.self_conditioning.pre_norm.weight": model.conditioner_norm,
    }
    for name, parameter in model.conditioner.named_parameters():
        named[f"{DECODER}.self_conditioning.{name}"] = parameter
    for i, layer in enumerate(model.layers):
        named |= {f"{DECODER}.layers.{i}.{_name(name)}": p for name, p in _decoder_parameters(layer)}
        named[f"model.encoder.language_model.layers.{i}.layer_scalar"] = layer.encoder_layer_scalar
    return named


def _decoder_parameters(layer: Layer) -> list[tuple[str, Tensor]]:
    return [(name, p) for name, p in layer.named_parameters() if name != "encoder_layer_scalar"]


def _name(name: str) -> str:
    return f"{name}.weight" if "norm" in name and not name.endswith(".weight") else name

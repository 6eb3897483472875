"""Writes the model folder in the hub layout."""

import argparse
import json
import shutil
from pathlib import Path

import card
import checkpoint
import settings
from model import Model
from safetensors.torch import save_file
from shape import Shape
from tensors import hub_tensors

LIMIT = 7_800_000


def export(model: Model, folder: Path, readme: str) -> None:
    """Writes a folder beside the target, then swaps it in."""
    fresh = folder.with_name(folder.name + ".new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    save_file(hub_tensors(model), fresh / "model.safetensors", metadata={"format": "pt"})
    for name, content in _json_files(model.shape).items():
        (fresh / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n")
    shutil.copy(Path(__file__).with_name("chat_template.jinja"), fresh)
    (fresh / "README.md").write_text(readme)
    assert (fresh / "model.safetensors").stat().st_size < LIMIT
    _swap(fresh, folder)


def _json_files(shape: Shape) -> dict[str, settings.Json]:
    return {
        "config.json": settings.model_config(shape),
        "generation_config.json": settings.generation_config(),
        "tokenizer.json": settings.tokenizer(),
        "tokenizer_config.json": settings.tokenizer_config(),
    }


def _swap(fresh: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def main() -> None:
    """Exports a checkpoint."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scores", type=Path, help="JSON of evaluate.py for the model card")
    parser.add_argument("--before", type=int, default=0, help="examples that the weights of train.py --start had seen")
    options = parser.parse_args()
    model = Model(Shape())
    progress = checkpoint.load(options.checkpoint, model, [])
    progress.examples += options.before
    export(model, options.folder, card.text(model, progress, options.scores))


if __name__ == "__main__":
    main()

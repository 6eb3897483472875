"""Compares an exported folder with transformers' DiffusionGemma and with the tokenizers library."""

import argparse
from pathlib import Path

import checkpoint
import tasks
import torch
from conversation import Example, Message, answer_ids, prompt_ids, render
from model import Model
from shape import Shape
from torch import Tensor
from transformers import AutoTokenizer, DiffusionGemmaForBlockDiffusion, DynamicCache
from transformers.masking_utils import create_masks_for_generate
from vocabulary import decode

TOLERANCE = 1e-4


@torch.no_grad()
def reference_logits(
    reference: DiffusionGemmaForBlockDiffusion, ids: Tensor, canvas: Tensor, signal: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Causal hidden states and canvas logits by transformers, dynamic cache."""
    cache = DynamicCache(config=reference.config.get_text_config())
    encoder = reference.model.encoder
    embeds = encoder.get_input_embeddings()(ids)
    masks = create_masks_for_generate(
        config=reference.config.get_text_config(),
        inputs_embeds=embeds,
        attention_mask=None,
        cache=cache,
        position_ids=torch.arange(ids.shape[1])[None],
    )
    hidden = encoder(
        input_ids=ids, attention_mask=masks, cache=cache, position_ids=torch.arange(ids.shape[1])[None]
    ).last_hidden_state
    positions = torch.arange(ids.shape[1], ids.shape[1] + canvas.shape[1])[None]
    logits = reference(
        decoder_input_ids=canvas, cache=cache, decoder_position_ids=positions, self_conditioning_logits=signal
    ).logits
    return hidden, logits


@torch.no_grad()
def worst_difference(model: Model, reference: DiffusionGemmaForBlockDiffusion, length: int) -> float:
    """The largest difference of causal states and of canvas logits, without and with self-conditioning."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(3, 124, (1, length), generator=generator)
    canvas = torch.randint(0, 128, (1, 32), generator=generator)
    hidden, cache, _ = model.encode(ids)
    starts = torch.tensor([length])
    first = model.denoise(canvas, starts, cache, None)[0]
    second = model.denoise(canvas, starts, cache, first / 0.8)[0]
    expected_hidden, expected = reference_logits(reference, ids, canvas, None)
    _, expected_second = reference_logits(reference, ids, canvas, first / 0.8)
    pairs = ((hidden, expected_hidden), (first, expected), (second, expected_second))
    return max((a - b).abs().max().item() for a, b in pairs)


def check_tokenizer(folder: Path) -> None:
    """Ids, round trip and chat template against the training code."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for example in [e for task in (*tasks.MAKERS, *tasks.VARIANTS) for e in tasks.held_out(task, 50)]:
        text = tokenizer.apply_chat_template(
            list(example.messages), tokenize=False, add_generation_prompt=True, enable_thinking=example.enable_thinking
        )
        assert text == render(example.messages, example.enable_thinking), text
        ids = prompt_ids(example) + answer_ids(example)
        assert tokenizer.encode(text + example.answer + "<turn|>", add_special_tokens=False) == ids
        assert tokenizer.decode(ids) == decode(ids)
    _check_thoughts(tokenizer)


def _check_thoughts(tokenizer: AutoTokenizer) -> None:
    said: tuple[Message, ...] = (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "steps 1+2"},
        {"role": "assistant", "content": tasks.thought("1 3") + "3"},
        {"role": "user", "content": "sort ba"},
    )
    example = Example("sort", said, True, "ab")
    text = tokenizer.apply_chat_template(list(said), tokenize=False, add_generation_prompt=True, enable_thinking=True)
    assert text == render(said, example.enable_thinking) and "channel" not in text, text


def main() -> None:
    """Checks one folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("folder", type=Path)
    options = parser.parse_args()
    model = Model(Shape())
    checkpoint.load(options.checkpoint, model, [])
    check_tokenizer(options.folder)
    reference = DiffusionGemmaForBlockDiffusion.from_pretrained(options.folder, dtype=torch.float32).eval()
    for length in (6, 31, 32, 40, 100):
        worst = worst_difference(model, reference, length)
        print(f"prompt {length}: {worst:.1e}")
        assert worst <= TOLERANCE


if __name__ == "__main__":
    main()

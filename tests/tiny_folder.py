"""Tiny model folders, written by hand so that no test needs a download or a tensor library."""

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from dgemma.config import ModelConfig
from dgemma.names import expected_tensors

SPECIALS = {
    0: "<pad>",
    1: "<eos>",
    2: "<bos>",
    48: "<|tool_call>",
    49: "<tool_call|>",
    50: "<|tool_response>",
    52: '<|"|>',
    98: "<|think|>",
    100: "<|channel>",
    101: "<channel|>",
    105: "<|turn>",
    106: "<turn|>",
}
TEMPLATE = """{{ bos_token }}{% if enable_thinking or messages[0]['role'] == 'system' %}<|turn>system
{% if enable_thinking %}<|think|>
{% endif %}{% if messages[0]['role'] == 'system' %}{{ messages[0]['content'] | trim }}{% endif %}<turn|>
{% endif %}{% for message in messages if message['role'] != 'system' %}
<|turn>{{ 'model' if message['role'] == 'assistant' else message['role'] }}
{{ message['content'] | trim }}<turn|>
{% endfor %}{% if add_generation_prompt %}<|turn>model
{% endif %}"""


def config_dict() -> dict:
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    full = {"rope_type": "proportional", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25}
    text = {
        "vocab_size": 256,
        "hidden_size": 64,
        "intermediate_size": 96,
        "moe_intermediate_size": 32,
        "num_experts": 4,
        "top_k_experts": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 16,
        "global_head_dim": 32,
        "num_hidden_layers": 2,
        "layer_types": ["sliding_attention", "full_attention"],
        "sliding_window": 8,
        "max_position_embeddings": 4096,
        "rms_norm_eps": 1e-6,
        "hidden_activation": "gelu_pytorch_tanh",
        "rope_parameters": {"sliding_attention": rope, "full_attention": full},
    }
    return {"model_type": "diffusion_gemma", "dtype": "float32", "canvas_length": 16, "text_config": text}


def generation_dict() -> dict:
    return {
        "max_denoising_steps": 8,
        "t_min": 0.4,
        "t_max": 0.8,
        "sampler_config": {"entropy_bound": 0.1},
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "eos_token_id": [1, 106, 50],
        "pad_token_id": 0,
    }


def make_tokenizer() -> Tokenizer:
    """One id per printable and some control characters, Gemma's special tokens at their ids, byte tokens above."""
    characters = iter("\n" + "".join(map(chr, range(32, 127))) + "\x1b\x07\r\x08\x7f\t")
    free = [i for i in range(128) if i not in SPECIALS]
    vocab = {character: i for i, character in zip(free, characters, strict=False)}
    vocab |= {token: i for i, token in SPECIALS.items()}
    vocab |= {f"<0x{byte:02X}>": 128 + byte - 128 for byte in range(128, 256)}
    vocab["<unk>"] = 127
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS.values()])
    return tokenizer


def write_folder(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config_dict())
    write_json(folder / "generation_config.json", generation_dict())
    write_json(folder / "tokenizer_config.json", {"bos_token": "<bos>", "eos_token": {"content": "<eos>"}})
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    make_tokenizer().save(str(folder / "tokenizer.json"))
    shapes = expected_tensors(ModelConfig.from_dict(config_dict()))
    save_file({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, folder / "model.safetensors")
    return folder


def write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))

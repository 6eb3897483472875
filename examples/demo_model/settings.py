"""The JSON files of the model folder."""

from typing import Any

from shape import Shape
from vocabulary import SPECIALS, TOKENS

Json = dict[str, Any]
STOP_IDS = [1, 106, 50]


def model_config(shape: Shape) -> Json:
    """config.json; its vision tower is a stub that nothing uses."""
    return {
        "architectures": ["DiffusionGemmaForBlockDiffusion"],
        "model_type": "diffusion_gemma",
        "dtype": "float32",
        "canvas_length": shape.canvas,
        "boi_token_id": 125,
        "image_token_id": 126,
        "eoi_token_id": 127,
        "eos_token_id": [1, 106],
        "pad_token_id": 0,
        "bos_token_id": 2,
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "text_config": _text(shape),
        "vision_config": _vision(),
    }


def _text(shape: Shape) -> Json:
    return {
        "model_type": "diffusion_gemma_text",
        "dtype": "float32",
        "vocab_size": shape.vocab,
        "hidden_size": shape.hidden,
        "num_hidden_layers": len(shape.layers),
        "layer_types": list(shape.layers),
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_sliding,
        "num_global_key_value_heads": shape.kv_full,
        "head_dim": shape.head_sliding,
        "global_head_dim": shape.head_full,
        "intermediate_size": shape.dense,
        "moe_intermediate_size": shape.expert,
        "num_experts": shape.experts,
        "top_k_experts": shape.top_k,
        "hidden_activation": "gelu_pytorch_tanh",
        "sliding_window": shape.window,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1000000.0,
                "partial_rotary_factor": shape.rotated,
            },
        },
        "max_position_embeddings": shape.positions,
        "rms_norm_eps": shape.eps,
        "final_logit_softcapping": shape.softcap,
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_bidirectional_attention": "vision",
        "tie_word_embeddings": True,
        "initializer_range": 0.02,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": 2,
    }


def _vision() -> Json:
    return {
        "model_type": "gemma4_vision",
        "dtype": "float32",
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 1,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "patch_size": 4,
        "pooling_kernel_size": 3,
        "position_embedding_size": 16,
        "standardize": True,
        "use_clipped_linears": False,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100.0},
    }


def generation_config() -> Json:
    """generation_config.json: the release's numbers."""
    return {
        "max_new_tokens": 256,
        "max_denoising_steps": 48,
        "t_min": 0.4,
        "t_max": 0.8,
        "sampler_config": {"_cls_name": "EntropyBoundSamplerConfig", "entropy_bound": 0.1},
        "stability_threshold": 1,
        "confidence_threshold": 0.005,
        "bos_token_id": 2,
        "eos_token_id": STOP_IDS,
        "pad_token_id": 0,
    }


def tokenizer_config() -> Json:
    """tokenizer_config.json."""
    named = {"bos_token": "<bos>", "eos_token": "<eos>", "pad_token": "<pad>", "unk_token": "<unk>"}
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": Shape().positions,
        "padding_side": "left",
        "clean_up_tokenization_spaces": False,
        **named,
        "extra_special_tokens": [token for token in SPECIALS.values() if token not in named.values()],
    }


def tokenizer() -> Json:
    """tokenizer.json: characters without merges."""
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": i, "content": token, **flags} for i, token in SPECIALS.items()],
        "normalizer": None,
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Fuse"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": "<unk>",
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {token: i for i, token in enumerate(TOKENS)},
            "merges": [],
        },
    }

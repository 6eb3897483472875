"""tokenizer.json, tokenizer_config.json and chat_template.jinja out of GGUF metadata.

Gemma's tokenizer is a rank-based BPE over text whose spaces are U+2581, with byte tokens for what it does not know.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dgemma.errors import CheckpointError, DgemmaError, UnsupportedError
from dgemma_convert.readers.ggufheader import Header

_MODELS = ("gemma4",)
_CONTROL, _USER_DEFINED = 3, 4
_NAMED = {"bos_token": "bos", "eos_token": "eos", "unk_token": "unknown", "pad_token": "padding", "mask_token": "mask"}


def tokenizer_files(header: Header) -> dict[str, Path | bytes]:
    """The files, by name."""
    model = header.text("tokenizer.ggml.model", "")
    if model not in _MODELS:
        raise UnsupportedError(f"{header.path.name} has a tokenizer of the kind {model!r}.", "Supported: gemma4.")
    tokens = header.texts("tokenizer.ggml.tokens")
    named = _named(header, tokens)
    found: dict[str, Path | bytes] = {
        "tokenizer.json": _tokenizer(header, tokens, named).encode(),
        "tokenizer_config.json": _json({"tokenizer_class": "PreTrainedTokenizerFast", **named}).encode(),
    }
    if template := header.text("tokenizer.chat_template", ""):
        found["chat_template.jinja"] = template.encode()
    return found


def _named(header: Header, tokens: list[str]) -> dict[str, str]:
    ids = {key: header.fields.get(f"tokenizer.ggml.{name}_token_id") for key, name in _NAMED.items()}
    return {key: tokens[index] for key, index in ids.items() if type(index) is int and 0 <= index < len(tokens)}


def _tokenizer(header: Header, tokens: list[str], named: dict[str, str]) -> str:
    """tokenizer.json; the library has an error of its own for every contradiction."""
    try:
        return _built(header, tokens, named)
    except DgemmaError:
        raise
    except Exception as error:
        raise CheckpointError(f"{header.path.name} describes no sound tokenizer: {error}.") from error


def _built(header: Header, tokens: list[str], named: dict[str, str]) -> str:
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers, processors
    from tokenizers.models import BPE

    merges = [_pair(merge) for merge in header.texts("tokenizer.ggml.merges", [])]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens):
        raise CheckpointError(f"{header.path.name} has two tokens of one spelling.")
    unknown = named.get("unk_token")
    inner = Tokenizer(BPE(vocabulary, merges, unk_token=unknown, fuse_unk=True, byte_fallback=True))
    inner.normalizer = normalizers.Replace(" ", "▁")
    inner.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    types = header.wholes("tokenizer.ggml.token_type", len(tokens))
    for kind, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [token for token, each in zip(tokens, types, strict=True) if each == kind]
        entries = [AddedToken(token, normalized=False, special=special) for token in added]
        inner.add_special_tokens(entries) if special else inner.add_tokens(entries)
    bos = named.get("bos_token")
    if bos and header.fields.get("tokenizer.ggml.add_bos_token", True):
        pair = [(bos, vocabulary[bos])]
        inner.post_processor = processors.TemplateProcessing(f"{bos} $A", f"{bos} $A {bos}:1 $B:1", pair)
    return str(inner.to_str(pretty=False))


def _pair(merge: str) -> tuple[str, str]:
    left, _, right = merge.partition(" ")
    if not left or not right:
        raise CheckpointError(f"The GGUF file has a merge without two halves: {merge[:80]!r}.")
    return left, right


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"

"""Ids and text: the incremental decoder must equal decoding all at once, however the ids are cut."""

import os
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers

from dgemma.channels import MARKERS
from dgemma.errors import CheckpointError
from dgemma.tokenizer import Tokenizer
from tiny_folder import make_tokenizer

FALLBACK = Tokenizer.of(make_tokenizer(), (1, 106, 50))


def byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE(vocab={character: i for i, character in enumerate(alphabet)}, merges=[]))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    return Tokenizer.of(inner, (1,))


def metaspace() -> Tokenizer:
    vocab = {"<unk>": 0, "▁": 1} | {chr(97 + i): 2 + i for i in range(26)} | {"▁a": 28, "▁b": 29}
    inner = Inner(models.BPE(vocab=vocab, merges=[("▁", "a"), ("▁", "b")], unk_token="<unk>"))
    inner.decoder = decoders.Metaspace()
    return Tokenizer.of(inner, (0,))


def pieces(text_or_ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = [0, *sorted(min(cut, len(text_or_ids)) for cut in cuts), len(text_or_ids)]
    return [text_or_ids[a:b] for a, b in pairwise(edges)]


CUTS = st.lists(st.integers(0, 60), max_size=8)


@settings(max_examples=100, deadline=None)
@given(text=st.text(max_size=40), cuts=CUTS)
def test_text_survives_any_cut(text: str, cuts: list[int]) -> None:
    for tokenizer in (FALLBACK, byte_level()):
        ids = tokenizer.encode(text)
        detokenizer = tokenizer.detokenizer()
        parts = [detokenizer.push(part) for part in pieces(ids, cuts)]
        whole = tokenizer.decode(ids, skip_special=False)
        assert "".join([*parts, detokenizer.flush()]) == whole


@settings(max_examples=100, deadline=None)
@given(ids=st.lists(st.integers(0, 270) | st.integers(128, 255), max_size=40), cuts=CUTS, keep=st.booleans())
def test_any_ids_survive_any_cut(ids: list[int], cuts: list[int], keep: bool) -> None:
    detokenizer = FALLBACK.detokenizer(MARKERS if keep else None)
    hidden = FALLBACK.special_ids - {FALLBACK.id(marker) for marker in MARKERS} if keep else set()
    parts = [detokenizer.push(part) for part in pieces(ids, cuts)]
    whole = FALLBACK.decode([i for i in ids if i not in hidden], skip_special=False)
    assert "".join([*parts, detokenizer.flush()]) == whole


@settings(deadline=None)
@given(ids=st.lists(st.integers(1, 29), max_size=30), cuts=CUTS)
def test_leading_spaces_survive_any_cut(ids: list[int], cuts: list[int]) -> None:
    tokenizer = metaspace()
    detokenizer = tokenizer.detokenizer()
    parts = [detokenizer.push(part) for part in pieces(ids, cuts)]
    assert "".join([*parts, detokenizer.flush()]) == tokenizer.decode(ids, skip_special=False)


def test_character_split_by_a_block_edge() -> None:
    ids = FALLBACK.encode("a€b")
    assert len(ids) == 5
    detokenizer = FALLBACK.detokenizer()
    assert [detokenizer.push(ids[:2]), detokenizer.push(ids[2:4]), detokenizer.push(ids[4:])] == ["a", "", "€b"]


def test_special_ids(folder: Path) -> None:
    tokenizer = Tokenizer.from_folder(folder)
    assert tokenizer.stop_ids == (1, 106, 50)
    ids = tokenizer.encode("<bos>hi<turn|>")
    assert ids[0] == 2 and ids[-1] == 106 and {2, 106} <= tokenizer.special_ids
    assert tokenizer.decode(ids) == "hi" and tokenizer.decode(ids, skip_special=False) == "<bos>hi<turn|>"
    assert tokenizer.id("<|turn>") == 105 and tokenizer.id("nothing") is None


def test_damaged_file(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"tokenizer\.json cannot be read"):
        Tokenizer.from_folder(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError, match=r"no tokenizer\.json"):
        Tokenizer.from_folder(folder)


def test_an_absurd_file(folder: Path) -> None:
    os.truncate(folder / "tokenizer.json", 1 << 33)
    with pytest.raises(CheckpointError, match="larger than any"):
        Tokenizer.from_folder(folder)
